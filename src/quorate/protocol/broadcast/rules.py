"""By which protocol's rules a stream goes."""

from quorate.core.ids import Lane
from quorate.protocol.broadcast import authenticated, chain, first_answer, reliable, vote
from quorate.protocol.broadcast.scope import Rules
from quorate.protocol.topic import Topic

_RULES: dict[str, Rules] = {
    "first-answer": first_answer.RULES,
    "vote": vote.RULES,
    "authenticated": authenticated.RULES,
    "reliable": reliable.RULES,
    "chain": chain.RULES,
}


def rules_of(topic: Topic, lane: Lane) -> Rules:
    """Histories go by reliable broadcast, whatever their events go by."""
    return _RULES["reliable" if lane is Lane.HISTORIES else topic.contract.protocol]
