"""A client's requests to the replicas of a topic, repeated until answered (F1, F6, F10).

Source: FIT-Broker 2013, section 4.4.1 (algorithms 1 and 2) and section 4.4.4 (algorithm 5).

A request goes to every replica of its topic; the answer is the first one under crash faults and
f + 1 equal ones under Byzantine faults. Who subscribes to a live topic waits for n - f that grant
it: what is published from then on must not be before its time (see `incoming`). As long as others
may grant it, a refusal waits a while for them: a replica that lags behind does not know of a new
topic yet, and f that lie may say the same.
What was asked for stays on record, so that a replica that comes back after a crash is told again:
that is all the state transfer that a live topic needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quorate.core.filter import Filter
from quorate.core.ids import NodeId, TopicId
from quorate.core.messages import Operation, Reply, Request
from quorate.protocol.machine import Answered
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic
from quorate.protocol.voting import ReplyVoter

REPEAT_AFTER_US = 500_000
# What a replica that was away need not hear: it gave everything back when the link broke.
GIVING_BACK = (Operation.UNREGISTER, Operation.UNSUBSCRIBE)


@dataclass(slots=True)
class Standing:
    """A registration or subscription that is to hold until it is taken back."""

    number: int
    topic: Topic
    operation: Operation
    wanted: Filter
    voter: ReplyVoter
    # So many must grant it; fewer may refuse it.
    grants_needed: int
    lead: NodeId | None = None
    answered: bool = False
    # On whose word.
    granted_by: tuple[NodeId, ...] = ()
    refused: bool = False
    # A later request about the same topic holds in its place: it must not be repeated.
    superseded: bool = False
    repeat_at_us: int = 0
    renew_at_us: dict[NodeId, int] = field(default_factory=dict)
    # What as many refused as it takes, while others may know better.
    refusal: str = ""

    @property
    def grants(self) -> tuple[NodeId, ...]:
        return tuple(r for r, sentence in self.voter.replies.items() if not sentence)

    @property
    def may_be_granted(self) -> bool:
        """Whether enough replicas are left that have not refused it."""
        refused = sum(map(bool, self.voter.replies.values()))
        return len(self.topic.members) - refused >= self.voter.needed

    @property
    def is_about(self) -> tuple[TopicId, int]:
        """Registering is about the same as unregistering, and subscribing as unsubscribing."""
        return self.topic.id, self.operation // 2

    def request(self, replica: NodeId) -> Request:
        return Request(
            self.number,
            self.operation,
            self.topic.name,
            self.topic.contract.terms,
            lead=replica == self.lead,
            key_prefix=self.wanted.key_prefix,
            headers=dict(self.wanted.headers),
        )


class Requests:
    """What this client has asked for, by request number."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._standing: dict[int, Standing] = {}
        self._next_number = 1

    def ask(
        self,
        topic: Topic,
        operation: Operation,
        *,
        wanted: Filter | None = None,
        lead: NodeId | None = None,
    ) -> Standing:
        byzantine = topic.contract.protection == "byzantine"
        needed = topic.quorum.one_correct if byzantine else 1
        is_live = operation is Operation.SUBSCRIBE and not topic.contract.is_log
        standing = Standing(
            self._next_number, topic, operation, wanted or Filter(),
            ReplyVoter(topic.members, needed),
            topic.quorum.reachable if byzantine and is_live else needed, lead,
        )  # fmt: skip
        self._next_number += 1
        for earlier in self._standing.values():
            earlier.superseded |= earlier.is_about == standing.is_about
        self._standing[standing.number] = standing
        standing.repeat_at_us = self._outbox.now_us + REPEAT_AFTER_US
        for replica in topic.members:
            self._outbox.send(replica, standing.request(replica))
        return standing

    def take_number(self) -> int:
        """A number for something else that is answered."""
        self._next_number += 1
        return self._next_number - 1

    def withdraw(self, standing: Standing) -> None:
        self._standing.pop(standing.number, None)

    def on_reply(self, replica: NodeId, reply: Reply) -> None:
        standing = self._standing.get(reply.number)
        if standing is None:
            return
        if reply.sentence and standing.voter.replies.get(replica) == "":
            self._renew(replica, standing, reply.sentence)
            return
        answer = standing.voter.add(replica, reply.sentence)
        if not reply.sentence:
            answer = "" if len(standing.grants) >= standing.grants_needed else None
        if standing.refusal and answer is None and not standing.may_be_granted:
            answer = standing.refusal
        if answer is None or standing.answered:
            return
        if answer and standing.may_be_granted:
            standing.refusal = answer
        else:
            self._conclude(standing, answer)

    def _conclude(self, standing: Standing, answer: str) -> None:
        standing.answered, standing.refused = True, bool(answer)
        standing.granted_by = () if answer else standing.grants
        self._outbox.deliver(Answered(standing.number, answer))
        if answer or standing.operation in GIVING_BACK:
            self.withdraw(standing)

    def _renew(self, replica: NodeId, standing: Standing, why: str) -> None:
        """This replica ended what it had granted, since we took nothing. Now we do: ask again.

        Not at once if it does so again: one that lies would keep both of us busy.
        """
        now_us = self._outbox.now_us
        if now_us < standing.renew_at_us.get(replica, 0):
            return
        standing.renew_at_us[replica] = now_us + REPEAT_AFTER_US
        self._outbox.report(replica, "cut-off", why)
        self._outbox.send(replica, standing.request(replica))

    def connected(self, replica: NodeId) -> None:
        """A replica that crashed has forgotten us: say again what holds."""
        for standing in self._standing.values():
            if replica in standing.topic.index and not standing.superseded:
                self._outbox.send(replica, standing.request(replica))

    def tick(self) -> None:
        """Repeat to those that have not answered, whether or not the others have."""
        now_us = self._outbox.now_us
        for standing in list(self._standing.values()):
            if standing.repeat_at_us <= now_us:
                if len(standing.grants) >= standing.voter.needed:
                    # What they granted, the others refused: a place was not free yet, perhaps.
                    standing.refusal = ""
                    for replica, sentence in standing.voter.replies.items():
                        if sentence:
                            standing.voter.withdraw(replica)
                elif standing.refusal and not standing.answered:
                    self._conclude(standing, standing.refusal)
                    continue
            silent = set(standing.topic.members) - set(standing.voter.replies)
            if silent and standing.repeat_at_us <= now_us and not standing.superseded:
                standing.repeat_at_us = now_us + REPEAT_AFTER_US
                for replica in sorted(silent):
                    self._outbox.send(replica, standing.request(replica))

    def replies(self, number: int) -> Mapping[NodeId, str]:
        standing = self._standing.get(number)
        return standing.voter.replies if standing else {}


def other_terms(topic: Topic) -> str:
    """What a replica answers to a client whose cluster file says something else of a topic."""
    return (
        f"topic '{topic.name}' is {topic.contract.terms} here, and in your cluster file it is not; "
        "get the current one"
    )
