"""The control plane at one replica: commands are carried out, and their clients hear of it.

Source: FIT-Broker 2013, section 4.4.4; DESIGN section 3.

`machine.py` says what a command does. Here is who is told: the client what became of its command,
the members of a consumer group what they read now, and whoever asks which topics and replicas
there are. Clients believe what f + 1 replicas say alike, so nothing said here depends on anything
but the commands that were carried out.
"""

from collections.abc import Callable, Iterable

from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.columns import compression_of
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId, Sequence
from quorate.core.ordering import Concluded, Recall, TopologyQuery, TopologyReport
from quorate.crypto.digests import digest
from quorate.protocol.control.machine import Control
from quorate.protocol.control.state import ControlState
from quorate.protocol.outbox import Outbox

# What a member is told of a partition that it reads, and as much for looking at any other.
_PLACE_BYTES = 16


class Steward:
    """One replica's part in the control plane."""

    def __init__(self, control: Control, outbox: Outbox) -> None:
        self.control = control
        # Told when topics, replicas or clients have changed.
        self.on_topology: Callable[[Cluster], None] = _ignore
        # Told when sessions have ended for good.
        self.on_ended: Callable[[list[NodeId]], None] = _ignore
        self._outbox = outbox
        # The present topology as text, with its revision and digest.
        self._rendered: tuple[int, bytes, str] | None = None

    def carry_out(
        self, publisher: NodeId, first: Sequence, payloads: Iterable[bytes], time_us: int
    ) -> bool:
        """The next commands of a client have been put in order. True if replicas have changed."""
        before = self.control.cluster.replicas
        for sequence, payload in enumerate(payloads, first):
            sentence = self.control.apply(publisher, sequence, _command_in(payload), time_us)
            self._outbox.send(publisher, Concluded(sequence, sentence))
            changes = self.control.take_changes()
            if changes.topology_changed:
                self._rendered = None
                self.on_topology(self.control.cluster)
            if changes.ended:
                self.on_ended(changes.ended)
            for group, members in changes.groups.items():
                self._tell_assignments(group, members)
            self._repeat_assignments(publisher)
        return self.control.cluster.replicas != before

    def start_over(self, state: ControlState) -> None:
        """Go on from a state that we were given, whatever we had."""
        self.control = self.control.from_state(state)
        self._rendered = None
        self.on_topology(self.control.cluster)
        self.on_ended(self.control.ended)

    def on_recall(self, sender: NodeId, recall: Recall) -> None:
        sentence = self.control.result(sender, recall.sequence)
        if sentence is not None and self._outbox.may_answer(sender):
            self._outbox.answer(sender, Concluded(recall.sequence, sentence), len(sentence))

    def on_query(self, sender: NodeId, query: TopologyQuery) -> None:
        if not self._outbox.may_answer(sender):
            return
        if query.founding:
            text = self.control.state.founding
            revision, content = 0, digest(text.encode())
        else:
            revision, content, text = self._topology()
        text = text if query.whole else ""
        report = TopologyReport(query.number, revision, content, text)
        self._outbox.answer(sender, report, len(text))

    def _topology(self) -> tuple[int, bytes, str]:
        if self._rendered is None:
            text = self.control.cluster.shared().render()
            self._rendered = self.control.state.revision, digest(text.encode()), text
        return self._rendered

    def _repeat_assignments(self, member: NodeId) -> None:
        """Whoever is here again may have missed something; it hears of it once more, and not with
        each of a thousand commands.
        """
        session = self.control.state.sessions.get(member)
        for group in session.groups if session is not None else ():
            if not self._outbox.may_answer(member):
                return
            places = self.control.state.groups[group].places.values()
            self._outbox.charge(member, _PLACE_BYTES * sum(map(len, places)))
            self._tell_assignments(group, [member])

    def _tell_assignments(self, group: str, members: list[NodeId]) -> None:
        for member, assigned in self.control.groups.assignments(group, members).items():
            self._outbox.send(member, assigned)


def _command_in(payload: bytes) -> bytes:
    """The value of the one event in a batch; nothing, which is no command, if there is none.

    A batch that is compressed is none either: of some hundred bytes it makes a million events, and
    what it takes to decompress differs from release to release.
    """
    try:
        if compression_of(payload) != "none":
            return b""
        events = Batch(payload).events()
        return next(iter(events)).value
    except (RemoteProtocolError, StopIteration):
        return b""


def _ignore(_: object) -> None:
    """Nobody needs to know."""
