"""Virtual time, and what is due when.

Time is a whole number of microseconds and jumps from one instant at which something happens to
the next. What is to come lies unsorted in slots of a fraction of a millisecond, beside a small
heap of slots, and a slot is sorted when its time has come. A heap of single events would
compare tuples millions of times; here, putting a message down is one `append`.

What is due at one instant comes in the order in which it was put down, also when it is put down
during that very instant.
"""

from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, TypeAlias

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.sim.hosts import Host

Action: TypeAlias = Callable[[], object]
# When; then a receiver, a sender and a message, or None, 0 and an action.
Entry: TypeAlias = tuple[int, Host | None, NodeId, Any]

# A slot is this power of two of microseconds: shorter than most latencies, so that almost
# nothing is put down for the slot that is being worked on.
SLOT_BITS = 8

_by_time = itemgetter(0)


class Agenda:
    """What will happen. The world's loop works through `current` from `position` on."""

    __slots__ = ("_current_slot", "_order", "current", "now_us", "position", "slots")

    def __init__(self) -> None:
        self.now_us = 0
        self.slots: dict[int, list[Entry]] = {}
        self._order: list[int] = []
        self.current: list[Entry] = []
        self._current_slot = 0
        self.position = 0

    def at(self, at_us: int, action: Action) -> None:
        """Do this then, or now if that is in the past."""
        at_us = max(at_us, self.now_us)
        self.put((at_us, None, 0, action))

    def arrive(self, at_us: int, receiver: Host, sender: NodeId, message: Message) -> None:
        """This message reaches the receiver then."""
        self.put((at_us, receiver, sender, message))

    def put(self, entry: Entry) -> None:
        number = entry[0] >> SLOT_BITS
        slot = self.slots.get(number)
        if slot is not None:
            slot.append(entry)
        elif number == self._current_slot:
            insort(self.current, entry, key=_by_time)
        else:
            self.slots[number] = [entry]
            heappush(self._order, number)

    def advance(self, until_us: int) -> bool:
        """Make the next slot the current one; False when there is none before this time."""
        if not self._order or self._order[0] << SLOT_BITS > until_us:
            return False
        self._current_slot = heappop(self._order)
        self.current = self.slots.pop(self._current_slot)
        self.current.sort(key=_by_time)
        self.position = 0
        return True

    @property
    def has_current(self) -> bool:
        return self.position < len(self.current)

    @property
    def is_empty(self) -> bool:
        return not self._order and not self.has_current
