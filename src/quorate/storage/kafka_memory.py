"""Records of Kafka that are in memory, bounded in bytes."""

from collections import OrderedDict
from typing import NamedTuple


class Place(NamedTuple):
    """A record of Kafka."""

    topic: str
    partition: int
    offset: int


class Memory:
    """The payloads that were put here or asked for last. Whoever uses it from threads locks."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._payloads: OrderedDict[Place, bytes] = OrderedDict()
        self._bytes = 0

    def __contains__(self, place: Place) -> bool:
        return place in self._payloads

    def get(self, place: Place) -> bytes | None:
        payload = self._payloads.get(place)
        if payload is not None:
            self._payloads.move_to_end(place)
        return payload

    def put(self, place: Place, payload: bytes) -> None:
        self.pop(place)
        self._payloads[place] = payload
        self._bytes += len(payload)
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._payloads.popitem(last=False)[1])

    def pop(self, place: Place) -> bytes | None:
        payload = self._payloads.pop(place, None)
        if payload is not None:
            self._bytes -= len(payload)
        return payload
