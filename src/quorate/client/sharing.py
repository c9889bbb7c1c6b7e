"""A consumer as a member of a group: what it reads of the group's partitions, and how far it is.

The cluster assigns each partition to one member and keeps the offset that was committed last, in
its order log, so that no replica can hand a partition out twice or forget a commit. A member that
is to give a partition up stops reading it, commits how far it came, and says with the same command
that it has let go: its successor begins exactly there.

An event counts as read when the program comes back for the next one, or commits; so after a crash
the events that it was busy with come again, and none is left out. Where a member begins with what
nobody of the group has read is said before the program gets any of it, whoever commits the rest:
whoever comes after would begin later.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine
from typing import Protocol, TypeAlias

from quorate.core.control import KEEP_US, Command, Commit, GroupMode, Join, Leave, Renew
from quorate.core.errors import ClosedError, LocalProtocolError, QuorumError, RefusedError
from quorate.protocol.machine import Shared

# Offsets that fit one command, whatever the names of their topics are.
OFFSETS_PER_COMMIT = 12

_log = logging.getLogger("quorate.client")

# A topic, and one of its partitions.
Place: TypeAlias = tuple[str, int]
# What a commit says beside an offset: the epoch of the leader, or -1, and metadata.
Note: TypeAlias = tuple[int, str]
NO_NOTE: Note = (-1, "")


class Progress:
    """How far the program has come with each partition of log topics."""

    def __init__(self) -> None:
        # Handed to the program, which may still be busy with it.
        self.handed: dict[Place, int] = {}
        # What it is through with: the offset to go on with.
        self.done: dict[Place, int] = {}
        # The partition of the batch that it gets event by event now, and where in it the program
        # was when it came back last.
        self.open: Place | None = None
        self.reached: int | None = None

    def hand_out(self, place: Place, end: int) -> None:
        """All that comes before this offset has gone to the program."""
        self.handed[place] = end

    def begin(self, place: Place) -> None:
        """The first event of a batch is about to go to the program."""
        self.open, self.reached = place, None

    def close(self, offset: int) -> None:
        """The program gets no more of that batch than what comes before this offset."""
        self.catch_up()
        if self.open is not None:
            self.hand_out(self.open, offset)
            self.open = None

    def pass_on(self, place: Place, offset: int) -> None:
        """What comes before this offset, and has not gone to the program, never does."""
        (self.handed if place in self.handed else self.done)[place] = offset

    def catch_up(self) -> None:
        """What the program is through with of a batch counts, though it has not had all of it."""
        if self.open is not None and self.reached is not None:
            self.done[self.open] = self.reached

    def next_of(self, place: Place) -> int | None:
        """The first offset that has not gone to the program, if anything has."""
        return self.handed.get(place, self.done.get(place))

    def come_back(self) -> None:
        """The program asks for more: it is through with what it had."""
        if self.handed:
            self.done |= self.handed
            self.handed.clear()

    def forget(self, place: Place) -> None:
        self.handed.pop(place, None)
        self.done.pop(place, None)
        if self.open == place:
            self.open = None


class Reader(Protocol):
    """What a member does with its share."""

    def has(self, place: Place) -> bool:
        """Whether this partition is one that we know of."""

    def begin(self, place: Place, offset: int | None) -> None:
        """Read this partition from there on, or from where it was asked for."""

    def end(self, place: Place) -> None:
        """Read it no more, and drop what is queued of it."""

    def mode(self, topics: Collection[str]) -> GroupMode:
        """How these topics are read, as far as that can be chosen."""

    async def learn_topology(self, *, patiently: bool) -> object: ...

    async def command(self, command: Command) -> None: ...


class Member:
    """One member of one group. Without `commits_by_itself`, only the program says what is read."""

    def __init__(
        self,
        group: str,
        reader: Reader,
        progress: Progress,
        *,
        lease_us: int,
        commits_by_itself: bool,
        keep_us: int = KEEP_US,
    ) -> None:
        self.group = group
        self.topics: list[str] = []
        # What is ours to read now.
        self.held: dict[Place, None] = {}
        # Those of them of which nobody in the group has said yet how far it is; then, where we
        # began with them and have yet to say so.
        self._unread: set[Place] = set()
        self._beginnings: dict[Place, int] = {}
        # Whether we have yet to be granted all that we want, and whether we asked for anything.
        self.is_joining = False
        self._has_asked = False
        self._reader = reader
        self._progress = progress
        self._lease_us, self._keep_us = lease_us, keep_us
        self._commits_by_itself = commits_by_itself
        self._epoch = 0
        # What the cluster said last of what is ours.
        self._news_of_us: Shared | None = None
        # What the cluster has been told: offsets, and that we hold no more than in this epoch.
        self._committed: dict[Place, int] = {}
        # With these offsets: the epoch of the leader, or -1, and metadata.
        self._notes: dict[Place, Note] = {}
        self._acknowledged = 0
        self._committing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # Joining

    def want(self, topic: str) -> None:
        """Ask for a share of this topic too, with the next `join`."""
        self.topics = [*dict.fromkeys((*self.topics, topic))]
        self.is_joining = True

    async def drop(self, topic: str) -> None:
        self.topics = [name for name in self.topics if name != topic]
        if self.topics:
            await self.join()
        else:
            await self.leave()
            self.is_joining = False
            self._forget_share()

    async def join(self) -> None:
        topics, self._has_asked = self.topics, True
        mode = self._reader.mode(topics)
        await self._reader.command(Join(self.group, topics, self._lease_us, self._keep_us, mode))
        self.is_joining = self.topics != topics

    async def join_again(self) -> None:
        """Our lease ended: whatever we held is somebody else's."""
        self._forget_share()
        await self.join()

    async def leave(self) -> None:
        """Say how far we are, and that others may have what was ours."""
        if not self._has_asked:
            return
        with contextlib.suppress(RefusedError):
            await self._say(of_program=self._commits_by_itself)
        await self._reader.command(Leave(self.group))
        self._has_asked = False

    def _forget_share(self) -> None:
        for place in list(self.held):
            self._lose(place)
            self._progress.forget(place)
        self.held.clear()
        self._committed.clear()
        self._notes.clear()
        self._beginnings.clear()
        self._news_of_us = None
        self._epoch = self._acknowledged = 0

    # Sharing

    def on_shared(self, shared: Shared) -> None:
        """The cluster says what is ours to read now."""
        self._news_of_us = shared
        places: dict[Place, int | None] = {(t, number): at for t, number, at in shared.partitions}
        if not all(self._reader.has(place) for place in places):
            self._spawn(self._learn_of_topics(shared))
            return
        lost = [place for place in self.held if place not in places]
        gained = [place for place in places if place not in self.held]
        self._epoch, self.held = shared.epoch, dict.fromkeys(places)
        for place in lost:
            self._lose(place)
        notes = {(topic, number): (epoch, said) for topic, number, epoch, said in shared.notes}
        for place in gained:
            self._gain(place, places[place])
            self._notes[place] = notes.get(place, NO_NOTE)
        # Also tells the cluster that we let go of what we lost.
        self._spawn(self._let_go(lost))

    def _gain(self, place: Place, offset: int | None) -> None:
        if self._committed.get(place) == offset:
            # It may be back before anybody else said how far it is: we need not read again what we
            # are through with, nor begin later than we did.
            offset = self._progress.done.get(place, offset)
        else:
            self._forget(place)
            if offset is not None:
                self._committed[place] = offset
        if offset is None:
            self._unread.add(place)
        self._reader.begin(place, offset)

    def on_begun(self, place: Place, offset: int) -> None:
        """What we begin with is how far the group is: whoever comes after us misses nothing."""
        if place in self._unread:
            self._unread.discard(place)
            self._beginnings[place] = self._progress.done.setdefault(place, offset)
            self._spawn(self.commit_quietly())

    @property
    def is_beginning(self) -> bool:
        """Whether the cluster has yet to hear where we began."""
        return bool(self._beginnings)

    async def say_beginnings(self) -> None:
        """Until this is through, the program gets nothing of what nobody has read."""
        try:
            while self.is_beginning:
                await self._say(of_program=self._commits_by_itself)
        except RefusedError as error:
            # It is not ours any more, and we have yet to hear of that.
            _log.warning("a member of group %s did not begin: %s", self.group, error)

    async def _learn_of_topics(self, shared: Shared) -> None:
        """A topic has more partitions than we knew of. We ask until we know, or are told else."""
        with contextlib.suppress(ClosedError):
            with contextlib.suppress(QuorumError):
                await self._reader.learn_topology(patiently=True)
            if shared is self._news_of_us:
                self.on_shared(shared)

    def _lose(self, place: Place) -> None:
        self._unread.discard(place)
        self._reader.end(place)

    async def _let_go(self, lost: list[Place]) -> None:
        await self.commit_quietly()
        for place in lost:
            if place not in self.held:
                self._forget(place)

    def _forget(self, place: Place) -> None:
        self._progress.forget(place)
        self._committed.pop(place, None)
        self._notes.pop(place, None)
        self._beginnings.pop(place, None)

    # Committing

    async def commit(self, note: Note | None = None) -> None:
        """Say how far we are, and with a note also where the cluster knows that."""
        await self._say(of_program=True, note=note)

    def committed(self, place: Place) -> tuple[int, Note] | None:
        """The offset that the cluster has of a partition of ours, and what came with it."""
        offset = self._committed.get(place)
        return None if offset is None else (offset, self._notes.get(place, NO_NOTE))

    async def commit_quietly(self) -> None:
        """The same, as far as we do that by ourselves; what cannot be said now is said later."""
        with contextlib.suppress(ClosedError):
            try:
                await self._say(of_program=self._commits_by_itself)
            except (QuorumError, RefusedError) as error:
                _log.warning("a member of group %s did not commit: %s", self.group, error)

    async def renew(self) -> None:
        """Say that we are here, and what we have yet to say."""
        if self._acknowledged != self._epoch:
            await self._say(of_program=False)
        elif self.topics:
            await self._reader.command(Renew())

    async def _say(self, *, of_program: bool, note: Note | None = None) -> None:
        """How far the program is, or only where we began."""
        async with self._committing:
            self._progress.catch_up()
            done = self._beginnings | (self._progress.done if of_program else {})
            for commit in self._news(done, note):
                await self._reader.command(commit)
                self._acknowledged = max(self._acknowledged, commit.epoch)
                for topic, number, offset in commit.offsets:
                    self._committed[topic, number] = offset
                    self._notes[topic, number] = note or NO_NOTE
                    self._beginnings.pop((topic, number), None)

    def _news(self, done: dict[Place, int], note: Note | None) -> list[Commit]:
        """How far we are where the cluster does not know, and that we hold only what is ours."""
        news = [
            (*place, offset)
            for place, offset in done.items()
            if self._committed.get(place) != offset
            or (note is not None and self._notes.get(place, NO_NOTE) != note)
        ]
        count = 1 if note is not None else OFFSETS_PER_COMMIT
        parts = [news[at : at + count] for at in range(0, len(news), count)]
        if not parts and self._acknowledged != self._epoch:
            parts = [[]]
        # The first commit of an epoch gives up all that is not ours in it: offsets come before.
        epochs = [self._acknowledged] * (len(parts) - 1) + [self._epoch]
        return [
            Commit(self.group, epoch, part, [] if note is None else [note] * len(part))
            for epoch, part in zip(epochs, parts, strict=False)
        ]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def refuse_without(member: Member | None) -> Member:
    if member is None:
        raise LocalProtocolError("only a member of a group commits: Consumer(..., group=NAME)")
    return member
