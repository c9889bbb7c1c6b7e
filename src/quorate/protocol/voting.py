"""Counting equal voices (F6): for batches, and for replies to requests.

Source: FIT-Broker 2013, section 4.4.1, algorithm 3.

A voice counts once per replica. A replica that says two different things about one matter is
counted for the first and can be named for the second.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.limits import WINDOW_BATCHES

# What `Ballot.vote` returns for a voice that does not count.
REPEATED = 0
TWO_FACED = -1


class Votes(msgspec.Struct, eq=False, gc=False):
    """Who spoke for which content of one batch; replicas are bits.

    Nearly always all agree, so the first content has a place of its own, and only others
    need a dictionary.
    """

    content: Digest = b""
    votes: int = 0
    voters: int = 0
    others: dict[Digest, int] | None = None

    def votes_for(self, content: Digest) -> int:
        """Who spoke for this content, as bits."""
        if content == self.content:
            return self.votes
        return self.others.get(content, 0) if self.others else 0

    def others_than(self, content: Digest) -> int:
        """Who spoke for another content, as bits."""
        return self.voters & ~self.votes_for(content)

    def add(self, bit: int, content: Digest) -> int:
        """Count a voice: how many now agree with it, or why it does not count."""
        voters = self.voters
        if voters & bit:
            return REPEATED if self.votes_for(content) & bit else TWO_FACED
        self.voters = voters | bit
        if content == self.content:
            votes = self.votes = self.votes | bit
        elif not voters:
            self.content, self.votes = content, bit
            return 1
        else:
            if self.others is None:
                self.others = {}
            votes = self.others[content] = self.others.get(content, 0) | bit
        return votes.bit_count()


class Tally(Votes, eq=False, gc=False):
    """The voices about one batch, since somebody opened it."""

    opener: int = 0
    since_us: int = 0
    asked_at_us: int = 0


@dataclass(slots=True)
class WholeRun:
    """The voices about a run of batches, as long as all that speak of it agree.

    Replicas hand on the runs of a source as they got them, so that nearly always the same run
    comes from each of them, and one comparison counts all its batches.
    """

    opener: int
    contents: list[Digest]
    since_us: int
    votes: int = 0
    payloads: list[bytes] | None = None
    copier: NodeId | None = None


class Ballot:
    """All open tallies of one stream.

    A replica opens at most `span` tallies that stay undecided, so that one which
    invents sequence numbers fills up its own share and nothing else.
    """

    __slots__ = ("_opened", "open", "span")

    def __init__(self, replicas: int, span: int = WINDOW_BATCHES) -> None:
        self.span = span
        self.open: dict[Sequence, Tally] = {}
        self._opened = [0] * replicas

    def vote(self, sequence: Sequence, position: int, content: Digest, now_us: int) -> int:
        """One replica's voice: how many now agree with it, or why it does not count."""
        tally = self.open.get(sequence)
        if tally is not None:
            return tally.add(1 << position, content)
        if self._opened[position] >= self.span:
            return REPEATED
        self._opened[position] += 1
        bit = 1 << position
        self.open[sequence] = Tally(content, bit, bit, None, position, now_us, now_us)
        return 1

    def reserve(self, position: int, batches: int) -> bool:
        """Count so many batches of a whole run into a replica's share, if they fit."""
        if self._opened[position] + batches > self.span:
            return False
        self._opened[position] += batches
        return True

    def release(self, position: int, batches: int) -> None:
        self._opened[position] -= batches

    def close(self, sequence: Sequence) -> Tally | None:
        tally = self.open.pop(sequence, None)
        if tally is not None:
            self._opened[tally.opener] -= 1
        return tally


class ReplyVoter:
    """The replies to one request: answered once `needed` replicas say the same."""

    def __init__(self, replicas: Iterable[NodeId], needed: int) -> None:
        self._replies: dict[NodeId, str] = {}
        self._replicas = frozenset(replicas)
        self.needed = needed

    @property
    def replies(self) -> dict[NodeId, str]:
        return dict(self._replies)

    def withdraw(self, replica: NodeId) -> None:
        """Forget what this replica said: it is asked again."""
        self._replies.pop(replica, None)

    def add(self, replica: NodeId, sentence: str) -> str | None:
        """The voted answer, if this reply decides it."""
        if replica not in self._replicas or replica in self._replies:
            return None
        self._replies[replica] = sentence
        equal = sum(said == sentence for said in self._replies.values())
        return sentence if equal == self.needed else None
