"""Room in memory that several members share.

Anybody who may publish may also be Byzantine, in as many sessions as it likes. So room is shared
between members rather than between streams: each has an equal part, and whoever fills up its
own takes nothing away from the others.
"""

from collections import Counter
from collections.abc import Iterable

from quorate.core.ids import MemberId, NodeId, member_of


def gives_way(holders: Iterable[NodeId], newcomer: MemberId) -> MemberId | None:
    """Whose sessions hold most places, if one of them may go to this member; or None."""
    places = Counter(map(member_of, holders))
    largest = max(places, key=places.__getitem__, default=newcomer)
    return largest if places[largest] > places[newcomer] + 1 else None


class Budget:
    """So many bytes, of which no member uses more than its part.

    A part is never larger than half of them, so that there is room left for whoever comes next.
    """

    __slots__ = ("_bytes_max", "_held")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[MemberId, int] = {}

    @property
    def held_bytes(self) -> int:
        return sum(self._held.values())

    @property
    def part_bytes(self) -> int:
        """What each of the members that hold something may hold now."""
        return self._bytes_max // max(2, len(self._held))

    def held_by(self, node: NodeId) -> int:
        """What all sessions of this member hold together."""
        return self._held.get(member_of(node), 0)

    def has_room(self, node: NodeId, size: int) -> bool:
        """May it hold so much more? One that holds nothing may always begin."""
        held = self._held.get(member_of(node), 0)
        return not held or held + size <= self.part_bytes

    def take(self, node: NodeId, size: int) -> None:
        member = member_of(node)
        self._held[member] = self._held.get(member, 0) + size

    def give_back(self, node: NodeId, size: int) -> None:
        member = member_of(node)
        rest = self._held.get(member, 0) - size
        if rest > 0:
            self._held[member] = rest
        else:
            self._held.pop(member, None)
