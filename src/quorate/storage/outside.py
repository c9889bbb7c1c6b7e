"""A replica's store whose large payloads are kept outside: with Kafka, say.

Source: Kabis 2023, sections 3.1.1 and 3.3.1; DESIGN section 3 (data plane).

The journal, the indexes and all that rests on them are as ever, but where a payload was taken
outside the journal has its pointer. What is read follows the pointer, and is held against the
digest in it: whoever keeps payloads for us may lose or alter them, and is then told apart from
one that is slow. Payloads come from outside in another thread and stay for a while in a bounded
cache; until then `read` ends before them, and `is_fetching` says that they are on their way.

Rules:
- a pointer is held only when the store outside has acknowledged the payload for good;
- nothing from outside is served that does not have the digest of its pointer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import structs

from quorate.core.errors import QuorateError
from quorate.core.ids import DIGEST_BYTES, TopicId
from quorate.core.ordering import Partition
from quorate.protocol.ordering.records import Deposit, Held, Stretch
from quorate.storage.pending import Run, Source
from quorate.storage.pointers import POINTER_BYTES, Pointer, Pointers
from quorate.storage.store import DiskStore, FsyncPolicy, Replayed

# So many bytes are asked for ahead of whoever reads.
READ_AHEAD_BYTES = 4 * 1024 * 1024
# A reader that comes upon pointers looks at so many of them at a time.
_POINTERS_READ_BYTES = 64 * POINTER_BYTES


class OutsideError(QuorateError):
    """The store outside does not answer, and without it nothing can go on."""


class PayloadStore(Protocol):
    """Where payloads are kept outside. Nothing here waits, but for `fetch_now`."""

    def write(self, deposits: list[Deposit]) -> None:
        """Take these payloads; what becomes of each is said later."""

    def found(self, partition: Partition, pointer: Pointer) -> bytes | None:
        """The payload, if it has been fetched."""

    def fetch(self, partition: Partition, pointers: list[Pointer]) -> None:
        """Have these soon, unless they are known to be lost."""

    def is_fetching(self, partition: Partition, pointer: Pointer) -> bool:
        """Whether it may be there before long."""

    def is_lost(self, partition: Partition, pointer: Pointer) -> bool:
        """Whether it said that it does not have this, or has something else there."""

    def fetch_now(self, partition: Partition, pointers: list[Pointer]) -> list[bytes | None]:
        """The payloads, and None for those that are lost. `OutsideError` if nobody can say."""

    def adopt(self, names: dict[TopicId, tuple[str, int]]) -> None:
        """These are the topics whose payloads are kept, and how many partitions each has."""

    def status(self) -> dict[str, object]:
        """What to tell an operator."""

    def close(self) -> None: ...


class OutsideStore(DiskStore):
    """A `DiskStore` that follows pointers.

    `payloads` may be None: this replica kept payloads outside once, and does so no more. Those are
    then absent.
    """

    def __init__(
        self,
        directory: Path,
        pointers: Pointers,
        payloads: PayloadStore | None,
        *,
        fsync: FsyncPolicy = "always",
    ) -> None:
        super().__init__(directory, fsync=fsync)
        self.payloads = payloads
        self._pointers = pointers

    def close(self) -> None:
        super().close()
        if self.payloads is not None:
            self.payloads.close()

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        if partition.topic not in self._pointers.names:
            return super().read(partition, offset, bytes_max)
        # A few first: behind pointers there is much more than they take themselves.
        found = super().read(partition, offset, _POINTERS_READ_BYTES)
        decode = self._pointers.decode
        if all(decode(payload) is None for stretch in found for payload in stretch.payloads):
            found = super().read(partition, offset, bytes_max)
        return self._followed(partition, found, bytes_max)

    def is_fetching(self, partition: Partition, offset: int) -> bool:
        pointer, payloads = self._pointer_at(partition, offset), self.payloads
        return bool(payloads and pointer and payloads.is_fetching(partition, pointer))

    def may_come(self, partition: Partition, offset: int) -> bool:
        pointer, payloads = self._pointer_at(partition, offset), self.payloads
        return bool(payloads and pointer and not payloads.is_lost(partition, pointer))

    # Parts

    def _pointer_at(self, partition: Partition, offset: int) -> Pointer | None:
        for stretch in super().read(partition, offset, 1):
            return self._pointers.decode(stretch.payloads[0])
        return None

    def _followed(
        self, partition: Partition, stretches: list[Stretch], bytes_max: int
    ) -> list[Stretch]:
        """These stretches with what their pointers point to, up to the first that is not here."""
        self._fetch_ahead(partition, stretches)
        followed: list[Stretch] = []
        taken = 0
        for stretch in stretches:
            payloads: list[bytes] = []
            for payload in stretch.payloads:
                found = self._follow(partition, payload)
                is_first = not (followed or payloads)
                if found is None or (taken + len(found) > bytes_max and not is_first):
                    break
                payloads.append(found)
                taken += len(found)
            if payloads:
                # The first batches of the stretch, with these payloads.
                chains = stretch.chains[: len(payloads) * DIGEST_BYTES]
                followed.append(structs.replace(stretch, chains=chains, payloads=payloads))
            if len(payloads) < len(stretch.payloads):
                break
        return followed

    def _follow(self, partition: Partition, payload: bytes) -> bytes | None:
        pointer = self._pointers.decode(payload)
        if pointer is None:
            return payload
        return None if self.payloads is None else self.payloads.found(partition, pointer)

    def _fetch_ahead(self, partition: Partition, stretches: list[Stretch]) -> None:
        if self.payloads is None:
            return
        wanted: list[Pointer] = []
        room = READ_AHEAD_BYTES
        for payload in (payload for stretch in stretches for payload in stretch.payloads):
            pointer = self._pointers.decode(payload)
            if pointer is not None:
                room -= pointer.length
                if room < 0 and wanted:
                    break
                wanted.append(pointer)
        if wanted:
            self.payloads.fetch(partition, wanted)

    def _replayed_records(
        self, pending: Sequence[tuple[Source, Run]], positions: Sequence[int]
    ) -> Iterator[Replayed]:
        """The machine goes on with payloads, not with pointers. Those that are lost it never had.

        What is undecided was promised, and may be on no other disk yet: nothing goes on before the
        store outside has said what it has of it.
        """
        for record in super()._replayed_records(pending, positions):
            if isinstance(record, Held):
                yield from self._recovered_held(record)
            else:
                yield record

    def _recovered_held(self, held: Held) -> Iterator[Held]:
        partition = Partition(held.topic, held.partition)
        pointers = [self._pointers.decode(payload) for payload in held.payloads]
        wanted = [pointer for pointer in pointers if pointer is not None]
        if not wanted:
            yield held
            return
        has = self.payloads
        fetched = iter([None] * len(wanted) if has is None else has.fetch_now(partition, wanted))
        payloads = [
            payload if pointer is None else next(fetched)
            for payload, pointer in zip(held.payloads, pointers, strict=True)
        ]
        run: list[bytes] = []
        for number, payload in enumerate([*payloads, None], held.first):
            if payload is not None:
                run.append(payload)
            elif run:
                yield Held(held.publisher, held.topic, held.partition, number - len(run), run)
                run = []
