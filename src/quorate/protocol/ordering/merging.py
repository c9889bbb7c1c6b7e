"""One partition of a validated topic as those read it who do not validate.

Source: Kabis 2023, section 2.1 (table 2.1, basic guarantees); docs/decisions/0021.

Two logs are read on the word of one replica: the companion, which says what comes when, and the
validated log, without asking others to confirm it and without looking at signatures. Where a mark
stands in the companion, the validated batch is put that it stands for (`marking.py`). So all
readers of this kind see one order, and an offset of the companion says how far one is with both.

Of either log only so much is read ahead of the other.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from quorate.core.ids import MARKER
from quorate.core.ordering import Partition
from quorate.crypto.sids import batch_of
from quorate.protocol.machine import Entry, Turned
from quorate.protocol.ordering.reading import Reading
from quorate.protocol.outbox import Outbox

# As long as more than this waits for the other log, no more of a log is asked for.
AHEAD_BATCHES_MAX = 1024
AHEAD_BYTES_MAX = 4 * 1024 * 1024


class Ahead:
    """Whether so much of one log waits for the other that it shall bring no more."""

    __slots__ = ("batches", "size_bytes")

    def __init__(self) -> None:
        self.batches = self.size_bytes = 0

    def add(self, entry: Entry) -> None:
        self.batches += 1
        self.size_bytes += len(entry.payload)

    def remove(self, entry: Entry) -> None:
        self.batches -= 1
        self.size_bytes -= len(entry.payload)

    def hold(self, reading: Reading | None) -> None:
        is_much = self.batches > AHEAD_BATCHES_MAX or self.size_bytes > AHEAD_BYTES_MAX
        if reading is not None and reading.may_go_on is is_much:
            reading.may_go_on = not is_much
            if not is_much:
                reading.allow_more()


class Merging:
    """The companion of one partition, with validated batches where its marks are."""

    def __init__(
        self,
        partition: Partition,
        read_validated: Callable[[int], Reading],
        outbox: Outbox,
        *,
        first: range | None = None,
    ) -> None:
        """`read_validated` begins to read the validated log, whose batches come back through
        `on_validated`. Those at the offsets of `first` come before all that is in the companion
        from where it is read on."""
        self.partition = partition
        # The validated batch that is next, if we know.
        self.next: int | None = first.start if first is not None else None
        self.companion: Reading | None = None
        self.validated: Reading | None = None
        self._read_validated = read_validated
        self._outbox = outbox
        self._first = range(0) if first is None else first
        # What is to be merged, and what is to be put in the place of marks, by offset.
        self._entries: deque[Entry] = deque()
        self._arrived: dict[int, Entry] = {}
        self._entries_ahead, self._arrived_ahead = Ahead(), Ahead()
        self._is_turning = self._has_turned = False

    def on_companion(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._entries.append(entry)
            self._entries_ahead.add(entry)
        self.go_on()

    def on_validated(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._arrived[entry.offset] = entry
            self._arrived_ahead.add(entry)
        self.go_on()

    def turn(self) -> None:
        """From now on only validated batches are wanted: say which is the first, once it is
        known, and deliver nothing more."""
        self._is_turning = True
        self.go_on()

    def turn_back(self) -> bool:
        """Go on after all. False if it was said which validated batch is the first."""
        self._is_turning = self._has_turned
        return not self._has_turned

    def go_on(self) -> None:
        """Deliver what has come to its place."""
        while self._first and not self._is_turning:
            # They are read from the validated log, and so is where they stand.
            found = self._validated_at(self._first[0])
            if found is None and not self._is_gone(self._first[0]):
                break
            if found is not None:
                self._outbox.deliver(_opened(found))
            self.next, self._first = self._first[0] + 1, self._first[1:]
        while self._entries and not self._first and not self._is_turning:
            if not self._deliver(self._entries[0]):
                break
            self._entries_ahead.remove(self._entries.popleft())
        if self._is_turning:
            self._find_turn()
        self._entries_ahead.hold(self.companion)
        self._arrived_ahead.hold(self.validated)

    def _deliver(self, entry: Entry) -> bool:
        """False if this is a mark, and its batch is not here yet."""
        if entry.publisher != MARKER:
            self._outbox.deliver(entry)
            return True
        offset = entry.sequence - 1
        if self.next is not None and offset < self.next:
            return True
        found = self._validated_at(offset)
        if found is None and not self._is_gone(offset):
            return False
        self.next = offset + 1
        if found is not None:
            opened = _opened(found)
            self._outbox.deliver(
                msgspec.structs.replace(opened, partition=self.partition, offset=entry.offset)
            )
        return True

    def _validated_at(self, offset: int) -> Entry | None:
        if self.next is not None and offset > self.next:
            # Retention took marks, of batches that we shall never be asked for.
            for passed in [each for each in self._arrived if each < offset]:
                self._arrived_ahead.remove(self._arrived.pop(passed))
            self.next = offset
            if self.validated is not None and self.validated.received < offset:
                self.validated = None
        if self.validated is None:
            self.validated = self._read_validated(offset)
        found = self._arrived.pop(offset, None)
        if found is not None:
            self._arrived_ahead.remove(found)
        return found

    def _is_gone(self, offset: int) -> bool:
        """Whether retention took the batch that is marked."""
        return self.validated is not None and self.validated.position > offset

    def _find_turn(self) -> None:
        """The first batch that is wanted is the one behind what was delivered. If there was none,
        the first mark says which."""
        marks = (entry for entry in self._entries if entry.publisher == MARKER)
        first = next(marks, None)
        if self.next is None and first is not None:
            self.next = first.sequence - 1
        if self.next is not None and not self._has_turned:
            self._has_turned = True
            self._outbox.deliver(Turned(self.partition, self.next))
        for entry in self._entries:
            self._entries_ahead.remove(entry)
        self._entries.clear()


def _opened(entry: Entry) -> Entry:
    """What is behind its seal, at which nobody looked."""
    assert isinstance(entry.payload, bytes)
    payload = batch_of(entry.payload)
    return msgspec.structs.replace(entry, payload=payload, origin=entry.offset)
