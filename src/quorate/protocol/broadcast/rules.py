"""By which protocol's rules a stream goes."""

from typing import Protocol

from quorate.core.ids import Lane
from quorate.core.quorum import Quorum
from quorate.protocol.broadcast import authenticated, chain, first_answer, reliable, vote
from quorate.protocol.topic import Topic


class Rules(Protocol):
    """What the module of each protocol says to sources and destinations."""

    GUARANTEE: str
    """What a receipt promises, in words."""

    def copies_to_deliver(self, quorum: Quorum) -> int:
        """How many replicas must vouch for one content before it is delivered."""

    def replicas_to_settle(self, quorum: Quorum) -> int:
        """How many replicas must have a batch before its receipt is due."""


_RULES: dict[str, Rules] = {
    "first-answer": first_answer,
    "vote": vote,
    "authenticated": authenticated,
    "reliable": reliable,
    "chain": chain,
}


def rules_of(topic: Topic, lane: Lane) -> Rules:
    """Histories go by reliable broadcast, whatever their events go by."""
    return _RULES["reliable" if lane is Lane.HISTORIES else topic.contract.protocol]
