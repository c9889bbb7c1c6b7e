"""The control plane as a client sees it: commands out, one answer each, and news.

Source: FIT-Broker 2013, section 4.4.4; DESIGN section 3.

A command is a batch on the control topic, so that it is ordered once however often it is sent. Its
answer is what f + 1 replicas say alike (one, where nobody lies). Replicas remember the answer to a
client's last command only, and so a client gives one command after the other; whoever missed an
answer asks for it again.

What a consumer group's member is to read, and which topics and replicas there are, is believed on
the same terms.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from quorate.core import batch
from quorate.core.cluster import Cluster
from quorate.core.control import COMMAND_BYTES_MAX, Command, Join, encode_command
from quorate.core.errors import LocalProtocolError, QuorateError
from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.ordering import (
    Assigned,
    Concluded,
    Line,
    Ordered,
    Recall,
    TopologyQuery,
    TopologyReport,
    Unordered,
)
from quorate.crypto.digests import digest
from quorate.protocol.machine import Answered, Shared, Topology
from quorate.protocol.ordering.publisher import LineOutgoing
from quorate.protocol.outbox import Outbox
from quorate.protocol.requests import Requests
from quorate.protocol.topic import Topic
from quorate.protocol.voting import ReplyVoter

ASK_AGAIN_US = 500_000
# No answer after so long: those who knew it have forgotten it.
FORGOTTEN_AFTER_US = 20_000_000


@dataclass(slots=True)
class Given:
    """A command without an answer."""

    number: int
    sequence: Sequence
    voter: ReplyVoter
    since_us: int
    asked_us: int


class Inquiry:
    """Which topics and replicas are there? The digest is voted on; one replica sends the text.

    A replica that lags behind knows what was so before, and f that lie may say the same. Who asks
    patiently has all send the text, waits a while for all of them, and gets the newest.
    """

    def __init__(
        self,
        number: int,
        members: tuple[NodeId, ...],
        outbox: Outbox,
        *,
        founding: bool = False,
        patient: bool = False,
    ) -> None:
        self.number = number
        self.founding = founding
        self.is_patient = patient
        # Whether somebody waits for an answer.
        self.is_awaited = True
        self.asked_us = outbox.now_us
        self._patient_until_us = outbox.now_us + (ASK_AGAIN_US if patient else 0)
        self._members = members
        self._outbox = outbox
        # What each replica says last: a revision, and the digest of its text.
        self._words: dict[NodeId, tuple[int, Digest]] = {}
        # The texts that we were sent, of those, and by whom.
        self._texts: dict[tuple[int, Digest], tuple[NodeId, str]] = {}
        self._texts_from = 0

    def ask(self) -> None:
        self.asked_us = self._outbox.now_us
        # The text from one at a time, so that whoever is slow or lies costs a little time only.
        source = self._members[self._texts_from % len(self._members)]
        self._texts_from += 1
        for member in self._members:
            self._ask(member, whole=self.is_patient or member == source)

    def connected(self, member: NodeId) -> None:
        """It did not hear us before. If we have no text, that was perhaps to come from it."""
        if member in self._members and member not in self._words:
            self._ask(member, whole=self.is_patient or not self._texts)

    def _ask(self, member: NodeId, *, whole: bool) -> None:
        self._outbox.send(member, TopologyQuery(self.number, whole, self.founding))

    def on_report(self, replica: NodeId, report: TopologyReport) -> None:
        if replica not in self._members:
            return
        word = self._words[replica] = report.revision, report.digest
        if report.text and digest(report.text.encode()) == report.digest:
            self._texts[word] = replica, report.text
        said = set(self._words.values())
        self._texts = {word: text for word, text in self._texts.items() if word in said}

    def text(self, needed: int) -> tuple[NodeId, str] | None:
        """The newest text that so many vouch for, and who sent it, once we have waited for all."""
        is_early = self._outbox.now_us < self._patient_until_us
        if is_early and len(self._words) < len(self._members):
            return None
        voices = Counter(self._words.values())
        certain = [word for word, count in voices.items() if count >= needed]
        return self._texts.get(max(certain)) if certain else None


class Commands:
    """A client's end of the control plane."""

    def __init__(self, me: NodeId, topic: Topic | None, outbox: Outbox, requests: Requests) -> None:
        self._topic = topic
        self._outbox = outbox
        self._requests = requests
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._given: Given | None = None
        # By number. What the cluster is now is asked for now and then, whatever else is asked.
        self._inquiries: dict[int, Inquiry] = {}
        # What the cluster was when it began, once that was asked for.
        self.founding: Cluster | None = None
        # By group that we joined: what each replica says that we read, and what we believe.
        self._said: dict[str, dict[NodeId, Assigned]] = {}
        self._believed: dict[str, tuple[int, int]] = {}
        # By group that we were in and left, or lost our place in: the last epoch that we knew.
        self._former: dict[str, int] = {}
        self._line: LineOutgoing | None = None
        self._needed = 1
        if topic is not None:
            self._line = LineOutgoing(topic, Line(me, topic.id, 0), outbox)
            byzantine = topic.contract.protection == "byzantine"
            self._needed = topic.quorum.one_correct if byzantine else 1

    # What the application does

    def give(self, command: Command, timestamp_us: int) -> int:
        """Have a command carried out; the number comes back in an `Answered`."""
        self._require_control()
        value = encode_command(command)
        if len(value) > COMMAND_BYTES_MAX:
            raise LocalProtocolError(
                f"this command has {len(value)} bytes; allowed are {COMMAND_BYTES_MAX}"
            )
        if isinstance(command, Join):
            self._said.setdefault(command.group, {})
        number = self._requests.take_number()
        self._waiting.append((number, batch.encode_one(None, value, (), timestamp_us, False)))
        self._give_next()
        return number

    def ask_topology(self, *, patient: bool = False) -> int:
        """Ask which topics, replicas and clients there are, and perhaps wait for all to say so.

        A `Topology` comes, and then an `Answered`.
        """
        return self._inquire(patient=patient).number

    @property
    def can_ask(self) -> bool:
        """Whether there is a control plane."""
        return self._topic is not None

    def learn_topology(self) -> None:
        """Ask the same if there is somebody to ask; only the `Topology` comes."""
        asked = any(not inquiry.founding for inquiry in self._inquiries.values())
        if self._topic is not None and not asked:
            self._inquire().is_awaited = False

    def ask_founding(self) -> int:
        """Ask how the cluster began: it is in `founding` when the `Answered` comes."""
        return self._inquire(founding=True).number

    def _inquire(self, *, founding: bool = False, patient: bool = False) -> Inquiry:
        topic = self._require_control()
        for inquiry in self._inquiries.values():
            if (inquiry.founding, inquiry.is_patient) == (founding, patient):
                inquiry.is_awaited = True
                return inquiry
        number = self._requests.take_number()
        inquiry = Inquiry(number, topic.members, self._outbox, founding=founding, patient=patient)
        self._inquiries[number] = inquiry
        inquiry.ask()
        return inquiry

    def leave(self, group: str) -> None:
        """What is said of this group from now on is no news any more."""
        self._said.pop(group, None)
        epoch, _ = self._believed.pop(group, (0, 0))
        self._former[group] = max(epoch, self._former.get(group, 0))

    # Machine

    def tick(self) -> None:
        if self._line is not None:
            self._line.tick()
        now_us = self._outbox.now_us
        for inquiry in list(self._inquiries.values()):
            if now_us - inquiry.asked_us >= ASK_AGAIN_US and not self._is_answered(inquiry):
                inquiry.ask()
        given, line = self._given, self._line
        if given is None or self._topic is None or line is None:
            return
        if now_us - given.since_us >= FORGOTTEN_AFTER_US and not line.in_flight:
            self._conclude("nobody remembers what became of this command; ask for its effect")
        elif now_us - given.asked_us >= ASK_AGAIN_US:
            given.asked_us = now_us
            silent = [r for r in self._topic.members if r not in given.voter.replies]
            self._outbox.send_all(tuple(silent), Recall(given.sequence))

    def connected(self, peer: NodeId) -> None:
        for inquiry in self._inquiries.values():
            inquiry.connected(peer)
        if self._line is not None and self._topic is not None and peer in self._topic.index:
            self._line.reconnected(peer)

    def flush(self, can_send: Callable[[NodeId], bool]) -> None:
        if self._line is not None and self._line.in_flight:
            self._line.flush(can_send)

    # Messages

    def on_ordered(self, replica: NodeId, ordered: Ordered) -> None:
        if self._line is not None:
            self._line.on_ordered(replica, ordered)

    def on_unordered(self, replica: NodeId, unordered: Unordered) -> None:
        if self._line is not None:
            self._line.on_unordered(replica, unordered)
            if self._line.refusal and self._given is not None:
                self._conclude(self._line.refusal)

    def on_concluded(self, replica: NodeId, concluded: Concluded) -> None:
        given = self._given
        if given is None or concluded.sequence != given.sequence:
            return
        answer = given.voter.add(replica, concluded.sentence)
        if answer is not None:
            self._conclude(answer)

    def on_assigned(self, replica: NodeId, assigned: Assigned) -> None:
        topic, group = self._topic, assigned.group
        if topic is None or replica not in topic.index:
            return
        said = self._said.get(group)
        if said is None:
            # Nobody but us makes us a member: a group that we did not join is made up.
            return
        said[replica] = assigned
        is_news = (assigned.epoch, assigned.revision) > self._believed.get(group, (0, -1))
        if not is_news:
            return
        # A replica that lags behind says now what was so before we left, and f that lie agree. A
        # group that was forgotten meanwhile, though, counts its epochs from one again.
        is_old = assigned.epoch <= self._former.get(group, 0)
        needed = topic.quorum.reachable if is_old else self._needed
        if sum(other == assigned for other in said.values()) >= needed:
            self._believed[group] = assigned.epoch, assigned.revision
            self._former.pop(group, None)
            partitions = tuple(
                (name, number, None if offset < 0 else offset)
                for name, number, offset in assigned.partitions
            )
            self._outbox.deliver(Shared(group, assigned.epoch, partitions, tuple(assigned.notes)))

    def on_report(self, replica: NodeId, report: TopologyReport) -> None:
        inquiry = self._inquiries.get(report.number)
        if inquiry is not None:
            inquiry.on_report(replica, report)
            self._is_answered(inquiry)

    def _is_answered(self, inquiry: Inquiry) -> bool:
        found = inquiry.text(self._needed)
        if found is None:
            return False
        sender, text = found
        try:
            cluster = Cluster.parse(text)
        except QuorateError as error:
            self._outbox.report(sender, "bad-topology", str(error))
            return False
        del self._inquiries[inquiry.number]
        if inquiry.founding:
            self.founding = cluster
        else:
            self._outbox.deliver(Topology(cluster))
        if inquiry.is_awaited:
            self._outbox.deliver(Answered(inquiry.number, ""))
        return True

    # Parts

    def _give_next(self) -> None:
        if self._given is not None or not self._waiting:
            return
        topic = self._require_control()
        assert self._line is not None
        number, payload = self._waiting.popleft()
        if self._line.refusal:
            self._outbox.deliver(Answered(number, self._line.refusal))
            self._give_next()
            return
        now_us = self._outbox.now_us
        voter = ReplyVoter(topic.members, self._needed)
        self._given = Given(number, self._line.add(payload, 1), voter, now_us, now_us)

    def _conclude(self, sentence: str) -> None:
        assert self._given is not None
        self._outbox.deliver(Answered(self._given.number, sentence))
        self._given = None
        self._give_next()

    def _require_control(self) -> Topic:
        if self._topic is None:
            raise LocalProtocolError(
                "this cluster has no control plane, since with f faulty replicas it takes 2f + 1 "
                "to agree on anything; its topics are those of its file, and groups need more "
                "replicas"
            )
        return self._topic
