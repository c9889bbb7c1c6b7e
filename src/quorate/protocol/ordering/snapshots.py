"""When the head of the log is signed, and when the state of the group is written down.

After some slots, the same ones at every replica, all sign the head of their log; after some of
those the state as well (`log.py` says after which). A replica that starts replays all that came
after the last snapshot on its disk, so that it writes one of its own when that has become much.
"""

from quorate.protocol.ordering.backlog import Backlog
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.consensus import Consensus
from quorate.protocol.ordering.cosigning import Cosigning
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.placement import Roster
from quorate.protocol.ordering.records import Snapshot
from quorate.protocol.ordering.transfer import Transfer
from quorate.protocol.outbox import Outbox

# A snapshot is written after so many batches at most: a slot may order thousands, and all that came
# after the last one are replayed.
SNAPSHOT_BATCHES = 131_072


class Snapshots:
    """What one replica signs and writes down of its group's log."""

    def __init__(
        self,
        roster: Roster,
        log: OrderLog,
        commands: Commands,
        consensus: Consensus,
        backlog: Backlog,
        cosigning: Cosigning | None,
        transfer: Transfer | None,
        outbox: Outbox,
    ) -> None:
        self._others, self._takes_part = roster.others, roster.takes_part
        self._log = log
        self._commands = commands
        self._consensus = consensus
        self._backlog = backlog
        self._cosigning = cosigning
        self._transfer = transfer
        self._outbox = outbox
        self._batches_max = _batches_max(roster)
        # How many batches the last snapshot covers.
        self._size = log.tree.size

    def after_slot(self) -> None:
        """Do what is due after the slot that was just applied."""
        is_sealed, snapshot = self._log.is_seal_due(), self._due()
        if snapshot is not None or self._log.tree.size - self._size >= self._batches_max:
            self._write(snapshot or self._snapshot())
        if is_sealed:
            self._seal(snapshot)

    def seal_last(self) -> None:
        """What came last is signed too, when nothing follows that would bring it about."""
        if self._cosigning is not None and self._log.tree.size != self._cosigning.signed:
            self._seal(self._due())

    def start_over(self) -> None:
        """The log has begun at a state that we were given, which is on disk."""
        self._size = self._log.tree.size

    def _due(self) -> Snapshot | None:
        return self._snapshot() if self._log.is_snapshot_due else None

    def _snapshot(self) -> Snapshot:
        signs_above = self._cosigning.signs_above if self._cosigning is not None else 0
        return self._log.snapshot(self._consensus.regency, signs_above)

    def _write(self, snapshot: Snapshot) -> None:
        self._size = self._log.tree.size
        if displaced := self._backlog.displaced():
            # Votes of earlier slots, with which it was written down, are not read again.
            self._consensus.keep_displaced(displaced)
        self._outbox.persist(snapshot, sync=False)
        self._commands.written_down()

    def _seal(self, snapshot: Snapshot | None) -> None:
        """Sign the head of the log, where a snapshot is due together with that: one per size."""
        log = self._log
        if not self._takes_part:
            return
        if snapshot is not None and self._transfer is not None:
            self._transfer.sign(snapshot, log)
        elif self._cosigning is not None:
            self._cosigning.seal(self._others, log.tree.size, log.tree.root(), log.state.time_us)


def _batches_max(roster: Roster) -> int:
    """After how many batches this replica writes a snapshot, whatever the slot.

    To write it takes a while, so that replicas had better not do so at the same time: one waits
    for all of the batches, and each of the others for a few less than the one before.
    """
    rank = roster.members.index(roster.me) if roster.takes_part else 0
    sooner = SNAPSHOT_BATCHES * rank // (2 * len(roster.members))
    return SNAPSHOT_BATCHES - sooner
