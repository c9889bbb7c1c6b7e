"""Counting equal voices (F6): for batches, and for replies to requests.

Source: FIT-Broker 2013, section 4.4.1, algorithm 3.

A voice counts once per replica. A replica that says two different things about one matter is
counted for the first and can be named for the second.
"""

from collections.abc import Iterable

from quorate.core.ids import Digest, NodeId, Sequence
from quorate.core.limits import WINDOW_BATCHES


class Tally:
    """The voices about one batch; replicas are bits."""

    __slots__ = ("asked_at_us", "contents", "opener", "since_us", "voters")

    def __init__(self, opener: int, now_us: int) -> None:
        self.contents: dict[Digest, int] = {}
        self.voters = 0
        self.opener = opener
        self.since_us = now_us
        self.asked_at_us = now_us

    def add(self, position: int, content: Digest) -> bool:
        """Count a voice. False if this replica has spoken for another content."""
        bit = 1 << position
        if self.voters & bit:
            return bool(self.contents.get(content, 0) & bit)
        self.voters |= bit
        self.contents[content] = self.contents.get(content, 0) | bit
        return True

    def count(self, content: Digest) -> int:
        return self.contents.get(content, 0).bit_count()


class Ballot:
    """All open tallies of one stream.

    A replica opens at most `WINDOW_BATCHES` tallies that stay undecided, so that one which
    invents sequence numbers fills up its own share and nothing else.
    """

    __slots__ = ("_opened", "open")

    def __init__(self, replicas: int) -> None:
        self.open: dict[Sequence, Tally] = {}
        self._opened = [0] * replicas

    def tally(self, sequence: Sequence, position: int, now_us: int) -> Tally | None:
        """The tally of this batch, opened by this replica if need be and if it may."""
        tally = self.open.get(sequence)
        if tally is None and self._opened[position] < WINDOW_BATCHES:
            self._opened[position] += 1
            tally = self.open[sequence] = Tally(position, now_us)
        return tally

    def close(self, sequence: Sequence) -> None:
        tally = self.open.pop(sequence, None)
        if tally is not None:
            self._opened[tally.opener] -= 1


class ReplyVoter:
    """The replies to one request: answered once `needed` replicas say the same."""

    def __init__(self, replicas: Iterable[NodeId], needed: int) -> None:
        self._replies: dict[NodeId, str] = {}
        self._replicas = frozenset(replicas)
        self._needed = needed

    @property
    def replies(self) -> dict[NodeId, str]:
        return dict(self._replies)

    def add(self, replica: NodeId, sentence: str) -> str | None:
        """The voted answer, if this reply decides it."""
        if replica not in self._replicas or replica in self._replies:
            return None
        self._replies[replica] = sentence
        equal = sum(said == sentence for said in self._replies.values())
        return sentence if equal == self._needed else None
