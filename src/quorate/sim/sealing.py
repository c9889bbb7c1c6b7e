"""Producers that sign, in a world without secrets: a key follows from a node's number.

Signatures are real ones, since replicas and readers look at them as they do anywhere. All that is
sealed in a world is kept, so that those who cheat can use what others signed.
"""

from collections.abc import Callable
from functools import cache
from random import Random

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quorate.core.header import SALT_BYTES
from quorate.core.ids import NodeId, Sequence, member_of
from quorate.protocol.ordering.validation import Sealer, Sealing

CLUSTER = "simulated"


@cache
def signing_key(node: NodeId, number: int = 0) -> Ed25519PrivateKey:
    """The key of a node; with another number, one that is pinned for nobody."""
    return Ed25519PrivateKey.from_private_bytes(
        blake3(b"simulated producer %d, key %d" % (node, number)).digest()
    )


@cache
def public_key(node: NodeId, number: int = 0) -> bytes:
    return signing_key(node, number).public_key().public_bytes_raw()


class Sealed:
    """All that was sealed in one world, by producer, topic, partition and number.

    Of two twins that both seal a number, the last one is known.
    """

    def __init__(self) -> None:
        self._payloads: dict[NodeId, dict[tuple[str, int, Sequence], bytes]] = {}

    def add(
        self, node: NodeId, topic: str, partition: int, sequence: Sequence, payload: bytes
    ) -> None:
        self._payloads.setdefault(node, {})[topic, partition, sequence] = payload

    def get(self, node: NodeId, topic: str, partition: int, sequence: Sequence) -> bytes | None:
        return self.by(node).get((topic, partition, sequence))

    def by(self, node: NodeId) -> dict[tuple[str, int, Sequence], bytes]:
        return self._payloads.get(node, {})

    def by_others(self, node: NodeId) -> list[bytes]:
        return [
            payload
            for other, payloads in self._payloads.items()
            if other != node
            for payload in payloads.values()
        ]


class SimSealer(Sealer):
    """Seals what one simulated producer publishes."""

    def __init__(
        self, node: NodeId, *, wall_us: Callable[[], int], salts: Random, sealed: Sealed
    ) -> None:
        self._node, self._sealed = node, sealed
        super().__init__(
            CLUSTER, public_key(member_of(node)), signing_key(member_of(node)).sign,
            wall_us=wall_us, salt=lambda _, __: salts.randbytes(SALT_BYTES),
        )  # fmt: skip

    def sign_held(self) -> list[Sealing]:
        held = super().sign_held()
        for sealing in held:
            place = sealing.place
            self._sealed.add(
                self._node, place.topic, place.partition, sealing.sequence, sealing.payload
            )
        return held
