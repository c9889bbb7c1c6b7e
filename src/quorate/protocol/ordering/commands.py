"""Commands where they are ordered: carried out in the slot that decides them.

One group of a cluster orders its commands (`protocol/control`). They are carried out alike on every
replica, and so no replica goes on behind that slot before it has their payloads: digests are not
enough. A replica that restarts carries out again what its last snapshot does not have, from its
disk; whoever lags behind is told the commands together with the slot.
"""

from collections.abc import Callable, Iterable

from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.errors import DamagedError
from quorate.core.ids import TopicId
from quorate.core.ordering import Line, Partition
from quorate.crypto.digests import cut, descriptor
from quorate.protocol.control.replica import Steward
from quorate.protocol.control.state import ControlState
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.records import Decided, Placed, Store
from quorate.protocol.topic import Topic, by_id, topics_of

READ_BYTES_MAX = 1024 * 1024

_CONTROL = Partition(CONTROL_TOPIC_ID, 0)


class Commands:
    """The commands of one group. Without a steward, it is not the group that orders them."""

    def __init__(self, steward: Steward | None, log: OrderLog, store: Store) -> None:
        self._steward = steward
        self._log = log
        self._store = store
        if steward is not None:
            log.state.control = steward.control.state
        # Commands from here on are in no snapshot that is safely on disk.
        self.needed_from = log.partition(_CONTROL).end
        # And these are not in the last one, wherever that is.
        self._snapshot_end = self.needed_from

    def are_on(self, line: Line) -> bool:
        """Whether what this line brings is carried out here."""
        return line.topic == CONTROL_TOPIC_ID and self._steward is not None

    @property
    def await_snapshot(self) -> bool:
        """We know how the cluster is now and not how it began: commands would mislead us."""
        is_late = self._steward is not None and self._steward.control.genesis.revision > 0
        return is_late and self._log.state.slot == 0

    def carry_out(self, placed: Placed, payloads: Iterable[bytes | None], time_us: int) -> None:
        if self._steward is None:
            return
        given = [payload for payload in payloads if payload is not None]
        if self._steward.carry_out(placed.publisher, placed.first, given, time_us):
            # A replica that is new here begins with this.
            self._log.want_snapshot()

    def replay(self, decided: Decided) -> None:
        """Carry out again what a slot from before the restart decided, and nothing else.

        A replica that left one out would go on with another cluster than all others have.
        """
        for placed in self._placed_in(decided):
            payloads = self._read(placed)
            if [*map(descriptor, payloads)] != cut(placed.descriptors):
                raise DamagedError(
                    f"the commands of slot {decided.slot} are not on disk as they were decided; "
                    f"move the data directory away, and 'quorate replica NAME restore' makes one "
                    f"that takes what the others have"
                )
            self.carry_out(placed, payloads, decided.time_us)

    def of(self, decided: Decided) -> list[bytes]:
        """The commands that a slot decided, for somebody who lags behind."""
        return [payload for placed in self._placed_in(decided) for payload in self._read(placed)]

    def written_down(self) -> None:
        """A snapshot has been written. The one before it is on disk for certain: what came after
        that one may be needed."""
        self.needed_from, self._snapshot_end = self._snapshot_end, self._log.partition(_CONTROL).end

    def start_over(self, state: ControlState | None) -> None:
        """Go on from a state that we were given, and that the log goes on from as well."""
        if self._steward is not None and state is not None:
            self._steward.start_over(state)
        self.needed_from = self._snapshot_end = self._log.partition(_CONTROL).end

    def topic_of_in(self, state: ControlState | None) -> Callable[[TopicId], Topic | None] | None:
        """Topics by number as this state has them, in the group whose state they are part of."""
        if self._steward is None or state is None:
            return None
        return by_id(topics_of(self._steward.control.from_state(state).cluster)).get

    def _placed_in(self, decided: Decided) -> list[Placed]:
        if self._steward is None:
            return []
        return [placed for placed in decided.placed if placed.topic == CONTROL_TOPIC_ID]

    def _read(self, placed: Placed) -> list[bytes]:
        """Commands that were carried out, from the disk; fewer if they are not kept any more."""
        payloads: list[bytes] = []
        offset = placed.offset
        while len(payloads) < placed.count:
            stretches = self._store.read(_CONTROL, offset, READ_BYTES_MAX)
            if not stretches:
                break
            for stretch in stretches:
                payloads += stretch.payloads
            offset = stretches[-1].end
        return payloads[: placed.count]
