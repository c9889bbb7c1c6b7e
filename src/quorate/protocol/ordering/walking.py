"""Those who walk the slots of a group: how this replica decided each of them.

An auditor compares the replicas of a group with each other, and with what a quorum signed. So each
is asked on its own, and tells what stands in its journal: values, descriptors and offsets, no
payloads. From these and the tree before the first slot, the auditor computes everything else by
itself.
"""

from quorate.core.ids import NodeId
from quorate.core.ordering import WALKED_SLOTS_MAX, Slot, Walk, Walked
from quorate.crypto.merkle import edge_of
from quorate.protocol.ordering.cosigning import Cosigning
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.records import Decided, Store
from quorate.protocol.outbox import Outbox

# Of the journal, which has more about a slot than is told of it.
WALK_BYTES_MAX = 1024 * 1024


class Walking:
    """What one replica tells of the slots of one group."""

    def __init__(
        self, log: OrderLog, store: Store, cosigning: Cosigning | None, outbox: Outbox
    ) -> None:
        self._log, self._store = log, store
        self._cosigning, self._outbox = cosigning, outbox

    def on_walk(self, sender: NodeId, walk: Walk) -> None:
        if not self._outbox.may_answer(sender):
            return
        group = self._log.group
        start, end = self._store.slots(group)
        first = max(walk.slot, start)
        found = self._store.decided(group, first, WALK_BYTES_MAX)[:WALKED_SLOTS_MAX]
        if not found and self._log.state.slot >= max(end, 1):
            # What was decided in this turn is not on disk yet: our tree is ahead of it.
            return
        slots = [_slot(decided) for decided in found]
        size, edge = self._tree_before(found)
        walked = Walked(
            group, walk.number, first, slots, start, end, size, edge, self._checkpoints()
        )
        told_bytes = sum(len(slot.value) + len(slot.descriptors) for slot in slots)
        self._outbox.answer(sender, walked, told_bytes)

    def _tree_before(self, found: list[Decided]) -> tuple[int, list[bytes]]:
        """The size and the right edge of the tree before these slots."""
        if not found:
            return self._log.tree.size, list(self._log.tree.edge)
        group, size = self._log.group, found[0].placed[0].leaf
        return size, edge_of(lambda level, number: self._store.node(group, level, number), size)

    def _checkpoints(self) -> list[str]:
        """The last one, and the last one that names a state, which may be older."""
        certified = self._store.certified(self._log.group)
        last = self._cosigning.checkpoint if self._cosigning is not None else ""
        known = [last, certified.checkpoint if certified is not None else ""]
        return [text for text in dict.fromkeys(known) if text]


def _slot(decided: Decided) -> Slot:
    descriptors = b"".join([placed.descriptors for placed in decided.placed])
    return Slot(decided.value, descriptors, [placed.offset for placed in decided.placed])
