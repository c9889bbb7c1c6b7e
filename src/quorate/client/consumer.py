"""Subscribing: records out, one by one, many at a time, or as Arrow tables.

A live topic brings what is published from now on. A log topic can be read from any position:
its beginning, its end, an offset, or a time.

A consumer's own queue is bounded. When the program takes too little out of it, the consumer
stops reading from the replicas; their queues fill, and the topic's contract says what happens
then: producers are slowed, or the oldest or newest events of this subscriber are discarded.

A consumer validates the topics whose contract says so, unless `update_topology` says otherwise
(`modes.py`). Inside, what is read has the name of its *log*, which is the topic's or its
companion's.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from quorate.client.modes import Modes, checked_names
from quorate.client.queue import QUEUE_EVENTS, Arrival, Queue
from quorate.client.session import ANSWER_TIMEOUT_S, ClusterLike, IdentityLike, Session
from quorate.client.sharing import Member, Progress, refuse_without
from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.contract import companion_name
from quorate.core.control import (
    CONTROL_TOPIC,
    KEEP_US,
    KEEP_US_MAX,
    LEASE_US,
    LEASE_US_MAX,
    LEASE_US_MIN,
    full_name,
)
from quorate.core.errors import (
    ClosedError,
    LocalProtocolError,
    QuorumError,
    RefusedError,
    RemoteProtocolError,
)
from quorate.core.filter import Filter
from quorate.core.ids import MemberId, NodeId, TopicId, member_of, topic_id
from quorate.core.ordering import BEGIN_US, END_US, Marked, Partition
from quorate.protocol.control.client import Commands
from quorate.protocol.destination import Destination
from quorate.protocol.machine import (
    Answered,
    Begun,
    Clamped,
    Delivery,
    Entry,
    Outcome,
    Shared,
    Skipped,
    Topology,
    Trimmed,
    Turned,
)
from quorate.protocol.ordering.validation import Validation
from quorate.runtime.topics import client_names, topics_of

if TYPE_CHECKING:
    import pyarrow

# The queue may grow to this while somebody waits for an answer.
WAITING_BYTES = 256 * 1024 * 1024
AUTO_COMMIT_S = 1.0
# Records of fewer events are made faster one by one.
AT_ONCE_EVENTS_MIN = 8
LEAVE_TIMEOUT_S = 3.0
TELL_AFTER_S = 1.0

_log = logging.getLogger("quorate.client")

_TIMES_US = {"begin": BEGIN_US, "end": END_US}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Record(msgspec.Struct, frozen=True, gc=False):
    """One delivered event, who published it, and on whose word it was accepted."""

    topic: str
    publisher: str
    sequence: int
    index: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_us: int
    urgent: bool
    vouchers: tuple[str, ...]
    partition: int = 0
    # Of its batch, on a log topic. Consumers that validate a topic count validated batches, and
    # those that do not count both kinds together.
    offset: int | None = None
    # What its producer signed for its batch, if that was validated (`crypto/sids.py`).
    seal: bytes = b""

    @property
    def validated(self) -> bool:
        """Whether its producer's signature, its position and its content were all checked."""
        return bool(self.seal)


class Committed(msgspec.Struct, frozen=True, gc=False):
    """What a group committed of a partition: the offset to go on with, and what came with it."""

    offset: int
    epoch: int
    metadata: str


# Where to begin with a log topic.
Start: TypeAlias = Literal["begin", "end"] | int | datetime


class Consumer(Session):
    """Subscribes to any number of topics of one cluster.

    Live topics have no consumer groups, because nothing is kept for a group to share; the members
    of a `group` share the partitions of log topics, and go on where the group was. What they are
    through with is committed every `auto_commit_s`, and by `commit`; with None, by that alone.
    """

    def __init__(
        self,
        cluster: ClusterLike,
        identity: IdentityLike,
        *,
        group: str | None = None,
        auto_commit_s: float | None = AUTO_COMMIT_S,
        lease_s: float = LEASE_US / 1e6,
        keep_s: float = KEEP_US / 1e6,
        queue_events: int = QUEUE_EVENTS,
    ) -> None:
        """A short name means a `group` of one's own party; one of another is PARTY/NAME.

        A new group keeps its offsets for `keep_s` after its last member has left.
        """
        super().__init__(cluster, identity)
        _check_options(queue_events, lease_s, keep_s)
        self._progress = Progress()
        self._lease_us = int(lease_s * 1e6)
        self._auto_commit_s = auto_commit_s
        self._committer: asyncio.Task[None] | None = None
        self._membership: Member | None = None
        if group is not None:
            self._membership = Member(
                full_name(self.member.party, group), self, self._progress,
                lease_us=self._lease_us, keep_us=int(keep_s * 1e6),
                commits_by_itself=auto_commit_s is not None,
            )  # fmt: skip
        # Subscriptions that wait until we have asked which topics there are.
        self._put_off: list[tuple[list[str], Filter, Start]] = []
        self._starts: dict[str, Start] = {}
        # The batch whose events are handed out now, and where it stands in a validated log, if it
        # was read from that without validation.
        self._open: tuple[str, int, int] | None = None
        self._open_origin: int | None = None
        self._modes = Modes()
        self._changing = asyncio.Lock()
        # Batches of validated logs whose first events were handed out before, and how many.
        self._begun_with: dict[tuple[str, int], tuple[int, int]] = {}
        # Partitions that are to be validated as soon as it is known from where on; and from where
        # on, if a batch that the program has not had was read already.
        self._turning: dict[tuple[str, int], int | None] = {}
        self.counters: Counter[str] = Counter()
        self._queue = Queue(queue_events)
        topics = topics_of(self.cluster)
        self._destination = Destination(
            self.node, topics, self._macs, client_names(self.cluster),
            Validation.of(self.cluster, topics),
        )  # fmt: skip
        self._wanted: dict[str, Filter] = {}
        self._asked: dict[str, int] = {}
        self._refused: dict[str, Exception] = {}
        # The topic, and the log, that a number stands for.
        self._names: dict[TopicId, str] = {}
        self._log_names: dict[TopicId, str] = {}
        self._records: deque[Record] = deque()
        self._arrived = asyncio.Event()
        # Partitions whose first offset is not known yet.
        self._unbegun: set[Partition] = set()
        self._begun = asyncio.Event()
        # Offsets that were named, which may be beyond the end of their partition.
        self._named: dict[tuple[str, int], int] = {}
        self._is_paused = False
        # Publishers whose names nobody could tell us.
        self._strangers: set[MemberId] = set()
        # How many wait for an answer.
        self._waiting = 0

    # Subscriptions

    def subscribe(
        self,
        topics: Iterable[str],
        *,
        key_prefix: bytes = b"",
        headers: Mapping[str, bytes] | None = None,
        start: Start = "end",
    ) -> None:
        """Ask for topics, perhaps only for events with such a key and such headers.

        Log topics are read from `start` on: "begin", "end", an offset, or a time. An offset that
        is not there yet is waited for, and a warning says so. `await subscribed()` waits until the
        replicas agreed; reading does so by itself.
        """
        if isinstance(topics, str):
            raise LocalProtocolError(f"subscribe takes a list of topics: [{topics!r}]")
        wanted = Filter(key_prefix, dict(headers or {}))
        _check_start(start)
        topics = list(topics)
        known = (*self.cluster.topics, CONTROL_TOPIC)
        if self.cluster.control is not None and any(topic not in known for topic in topics):
            self._put_off.append((topics, wanted, start))
        else:
            self._subscribe(topics, wanted, start)
        if self._driver is not None:
            self._driver.wake()

    def _subscribe(self, topics: list[str], wanted: Filter, start: Start) -> None:
        for topic in topics:
            contract = self.cluster.contract(topic)
            if self._membership is not None and not contract.is_log:
                raise LocalProtocolError(
                    f"group '{self._membership.group}' cannot share '{topic}': groups are for log "
                    f"topics, and this one is live"
                )
        for topic in topics:
            log = self._log_of(topic)
            self._wanted[topic] = wanted
            self._starts[topic] = start
            self._ask_for(topic, log)
            if self._membership is not None:
                self._membership.want(log)
            elif self.cluster.contract(topic).is_log:
                for partition in range(self.cluster.contract(topic).partitions):
                    self._drop_queued(log, partition)
                    self._read(log, partition, start)

    def _ask_for(self, topic: str, log: str) -> None:
        self._names[topic_id(log)], self._log_names[topic_id(log)] = topic, log
        self._asked[topic] = self._destination.subscribe(log, self._wanted[topic])

    def _log_of(self, topic: str) -> str:
        return self._modes.log_of(self.cluster, topic)

    def _topic_of(self, log: str) -> str:
        return self._names[topic_id(log)]

    def seek(self, topic: str, partition: int, start: Start) -> None:
        """Go on with a partition of a log topic from there. What is queued of it is dropped."""
        self._check_place(topic, partition, start)
        log = self._log_of(topic)
        if self._membership is not None and (log, partition) not in self._membership.held:
            raise LocalProtocolError(
                f"partition {partition} of '{topic}' is not this member's of group "
                f"'{self._membership.group}'"
            )
        self._progress.forget((log, partition))
        if isinstance(start, int):
            self._progress.done[log, partition] = start
        self._drop_queued(log, partition)
        self._read(log, partition, start)
        if self._driver is not None:
            self._driver.wake()

    # Validated or basic

    async def update_topology(self, topics: Collection[str]) -> None:
        """From now on these topics are validated and all others are not (Kabis 2023, 2.1.3).

        A topic that is read already goes on where it was: no event comes twice, and no validated
        event is left out. Events that nobody validated come if they were published after a change
        to basic, and none come after a change to validated. Members of a group go on where the
        group is with the topic in this mode, or where they subscribed from if it has read none.
        """
        topics = checked_names(topics)
        async with self._changing:
            await self._know(topics)
            modes = Modes.of(self.cluster, topics)
            changed = [
                topic
                for topic in self._wanted
                if modes.log_of(self.cluster, topic) != self._log_of(topic)
            ]
            if self._membership is not None:
                await self._change_shares(self._membership, modes, changed)
                return
            left = [topic for topic in changed if self._log_of(topic) == topic]
            marks = await self._leave_validated(left)
            self._modes = modes
            for topic in changed:
                self._ask_for(topic, self._log_of(topic))
            for (topic, partition), (position, marked) in marks.items():
                self._turning.pop((topic, partition), None)
                self._read_on_unvalidated(topic, partition, position, marked)
            for topic in changed:
                if topic not in left:
                    self._turn_validated(topic)
            if changed:
                self.driver.wake()
                await self.subscribed()

    async def _leave_validated(
        self, topics: list[str]
    ) -> dict[tuple[str, int], tuple[int | None, Marked | None]]:
        """Where each partition goes on, when its validated batches have places in its companion."""
        found: dict[tuple[str, int], tuple[int | None, Marked | None]] = {}
        try:
            for topic in topics:
                for partition in range(self.cluster.contract(topic).partitions):
                    if await self._turns_back(topic, partition):
                        continue
                    reading = self._destination.reading(topic, partition)
                    position = None if reading is None else reading.position
                    self._destination.stop_reading_partition(topic, partition)
                    self._unbegun.discard(Partition(topic_id(topic), partition))
                    found[topic, partition] = position, None
            asked = [(place, at) for place, (at, _) in found.items() if at is not None]
            marks = await asyncio.gather(*(self._have_marked(*place, at) for place, at in asked))
            for (place, at), marked in zip(asked, marks, strict=True):
                found[place] = at, marked
        except BaseException:
            # We read on as before.
            for (topic, partition), (position, _) in found.items():
                start = self._starts[topic] if position is None else position
                self._read(topic, partition, start)
            raise
        return found

    async def _turns_back(self, topic: str, partition: int) -> bool:
        """Whether we had yet to learn where validated batches begin, and read the companion."""
        place, companion = (topic, partition), companion_name(topic)
        if place in self._turning and self._destination.turn_back(companion, partition):
            del self._turning[place]
            return True
        while place in self._turning:
            self._begun.clear()
            await self._begun.wait()
        return False

    async def _have_marked(self, topic: str, partition: int, offset: int) -> Marked | None:
        companion = companion_name(topic)
        number = self._destination.ask_for_marks(companion, partition, offset)
        self.driver.wake()
        try:
            await self._answer(
                number, companion, f"where validated batches of '{topic}' stand",
                needed=self.cluster.f + 1,
            )  # fmt: skip
            return self._destination.marks.take(number)
        finally:
            self._destination.marks.take(number)
            self._forget_answer(number)

    def _read_on_unvalidated(
        self, topic: str, partition: int, position: int | None, marked: Marked | None
    ) -> None:
        """What is queued was validated, and stays."""
        companion = self._log_of(topic)
        if position is None or marked is None:
            self._read(companion, partition, self._starts[topic])
        else:
            first = range(position, marked.marked)
            self._destination.read_on_unvalidated(companion, partition, first, marked.end)

    def _turn_validated(self, topic: str) -> None:
        """What is queued was not validated, and goes. It is read again as far as it can be."""
        companion = companion_name(topic)
        for number in range(self.cluster.contract(topic).partitions):
            places = [Partition(topic_id(log), number) for log in (companion, topic)]
            origin = self._queue.drop_unvalidated(places)
            is_open = self._open is not None and self._open[:2] == (companion, number)
            if is_open or self._open_origin is not None:
                origin = self._close_unvalidated(topic, number, origin)
            self._pause_or_go_on()
            self._unbegun.discard(places[0])
            if self._destination.reading(companion, number) is not None:
                self._turning[topic, number] = origin
                self._destination.turn_validated(companion, number)
            else:
                self._destination.stop_reading_partition(companion, number)
                self._read(topic, number, self._starts[topic])

    def _close_unvalidated(self, topic: str, number: int, origin: int | None) -> int | None:
        """Drop the rest of the batch that is handed out, if it is of this partition; says which
        validated batch is the first that is not handed out."""
        if self._open is None or self._open[:2] not in (
            (companion_name(topic), number), (topic, number)
        ):  # fmt: skip
            return origin
        if self._open_origin is not None:
            origin = self._open_origin
            self._begun_with[topic, number] = origin, self._records[0].index
        self._open = self._open_origin = None
        self._records.clear()
        return origin

    def _on_turned(self, turned: Turned) -> None:
        """We know with which validated batch we go on, if that is still what we want."""
        topic, number = self._names[turned.partition.topic], turned.partition.number
        if (topic, number) in self._turning:
            origin = self._turning.pop((topic, number))
            begun = self._begun_with.get((topic, number))
            companion = self._log_names[turned.partition.topic]
            self._destination.stop_reading_partition(companion, number)
            self._read(topic, number, turned.offset if origin is None else origin)
            if begun is not None:
                self._begun_with[topic, number] = begun

    async def _change_shares(self, membership: Member, modes: Modes, topics: list[str]) -> None:
        """Its group shares each log of a topic among those who read it."""
        former = {topic: self._log_of(topic) for topic in topics}
        self._modes = modes
        for topic in topics:
            self._ask_for(topic, self._log_of(topic))
            membership.change(former[topic], self._log_of(topic))
        if topics:
            self.driver.wake()
            await self.subscribed()

    # Groups

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are this member's of its group now."""
        held = [] if self._membership is None else list(self._membership.held)
        return [(self._topic_of(log), partition) for log, partition in held]

    def position(self, topic: str, partition: int) -> int | None:
        """The offset to go on with after what the program is through with, if it has read any."""
        return self._progress.done.get((self._log_of(topic), partition))

    async def commit(self, *, metadata: str = "", epoch: int = -1) -> None:
        """Have the cluster remember how far this member is. All that was handed out counts.

        `metadata` (at most 4 KiB) and the `epoch` of a leader are kept with the offsets.
        """
        self._progress.come_back()
        note = (epoch, metadata) if metadata or epoch >= 0 else None
        await refuse_without(self._membership).commit(note)

    def committed(self, topic: str, partition: int) -> Committed | None:
        """What was committed last of a partition of this member, if anything was."""
        place = self._log_of(topic), partition
        found = refuse_without(self._membership).committed(place)
        return None if found is None else Committed(found[0], *found[1])

    async def _join(self, membership: Member) -> None:
        """Become a member, and say so again now and then."""
        await membership.join()
        self._keep_lease(self._lease_us)
        if self._auto_commit_s is not None and self._committer is None:
            commits = self._commit_now_and_then(membership, self._auto_commit_s)
            self._committer = asyncio.create_task(commits)

    async def _commit_now_and_then(self, membership: Member, every_s: float) -> None:
        while not self._closed:
            await asyncio.sleep(every_s)
            await membership.commit_quietly()

    async def _renew(self) -> None:
        if self._membership is not None:
            await self._membership.renew()

    async def _take_again(self) -> None:
        if self._membership is not None:
            self._destination.commands.leave(self._membership.group)
            await self._membership.join_again()

    def has(self, place: tuple[str, int]) -> bool:
        log, number = place
        return number < self.cluster.contract_of(log).partitions

    def begin(self, place: tuple[str, int], offset: int | None) -> None:
        topic = self._topic_of(place[0])
        if self._log_of(topic) != place[0]:
            # It was ours to read before we changed to the other log, which the cluster has yet to
            # hear of.
            return
        if offset is None:
            self._read(*place, self._starts[topic])
        else:
            self._read(*place, offset, is_committed=True)
        if offset is not None:
            # Its group has been there.
            self._named.pop(place, None)
        self._begun.set()

    def end(self, place: tuple[str, int]) -> None:
        log, number = place
        self._destination.stop_reading_partition(log, number)
        self._unbegun.discard(Partition(topic_id(log), number))
        self._begun.set()
        self._drop_queued(log, number)

    def _drop_queued(self, log: str, partition: int) -> None:
        if self._open is not None and self._open[:2] == (log, partition):
            # The records that are here are those of one batch.
            self._open = None
            self._records.clear()
        self._queue.drop(Partition(topic_id(log), partition))
        self._pause_or_go_on()

    def _check_place(self, topic: str, partition: int, start: Start) -> None:
        contract = self.cluster.topics.get(topic)
        if topic == CONTROL_TOPIC:
            contract = self.cluster.control
        if any(topic in topics for topics, _, _ in self._put_off):
            raise LocalProtocolError(
                f"await subscribed() before seeking in topic '{topic}', which the cluster file "
                f"does not have"
            )
        if contract is None:
            raise LocalProtocolError(f"subscribe to topic '{topic}' before seeking in it")
        if not contract.is_log:
            raise LocalProtocolError(f"'{topic}' is no log topic, and cannot be read from anywhere")
        if not 0 <= partition < contract.partitions:
            raise LocalProtocolError(
                f"topic '{topic}' has no partition {partition}; "
                f"it has partitions 0 to {contract.partitions - 1}"
            )
        _check_start(start)
        if topic not in self._wanted:
            raise LocalProtocolError(f"subscribe to topic '{topic}' before seeking in it")

    def _read(self, log: str, partition: int, start: Start, *, is_committed: bool = False) -> None:
        self._unbegun.add(Partition(topic_id(log), partition))
        self._named.pop((log, partition), None)
        self._begun_with.pop((log, partition), None)
        if isinstance(start, int):
            self._named[log, partition] = start
            if is_committed:
                self._destination.read_from_commit(log, partition, start)
            else:
                self._destination.read(log, partition, start)
        elif isinstance(start, datetime):
            time_us = (start.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
            self._destination.read_from_time(log, partition, time_us)
        else:
            self._destination.read_from_time(log, partition, _TIMES_US[start])

    def _read_new_partitions(self, before: Cluster) -> None:
        """Topics that we read may have got more partitions, of which nothing was read yet.

        Those that are there when we begin are read from where all others are.
        """
        if self._membership is not None:
            # Its group is told what is whose.
            return
        for topic in self._wanted:
            known, now = before.contract(topic), self.cluster.contract(topic)
            if now.is_log:
                for partition in range(known.partitions, now.partitions):
                    start = "begin" if self._is_current else self._starts[topic]
                    self._read(self._log_of(topic), partition, start)

    async def subscribed(self) -> None:
        """Wait until every subscription is in force; raise if one is refused."""
        while self._put_off:
            topics, wanted, start = put_off = self._put_off.pop(0)
            try:
                await self._know(topics)
            except (QuorumError, asyncio.CancelledError):
                # Whoever waits gives up; what was asked for stays so.
                self._put_off.insert(0, put_off)
                raise
            self._subscribe(topics, wanted, start)
        await self._know(self._wanted)
        for topic, number in list(self._asked.items()):
            await self._answer(number, self._log_of(topic), f"to subscribe to '{topic}'")
            if self._asked.get(topic) == number:
                del self._asked[topic]
        if self._membership is not None and self._membership.is_joining:
            await self._join(self._membership)
        try:
            with self._listening():
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    while self._unbegun:
                        self._begun.clear()
                        await self._begun.wait()
                        if self._closed:
                            raise ClosedError("the consumer is closed")
        except TimeoutError:
            log = self._log_names[next(iter(self._unbegun)).topic]
            members = len(self.cluster.placement(log))
            raise self._too_few(
                "too few replicas say where a partition begins",
                log,
                needed=members - self.cluster.f,
            ) from None
        if self._membership is not None:
            await self._membership.say_beginnings()

    async def unsubscribe(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._asked.pop(topic, None)
        log = self._log_of(topic)
        if self._membership is not None:
            await self._membership.drop(log)
            if not self._membership.topics:
                self._destination.commands.leave(self._membership.group)
        if self.cluster.contract(topic).is_log:
            for partition in range(self.cluster.contract(topic).partitions):
                self._drop_queued(log, partition)
                self._unbegun.discard(Partition(topic_id(log), partition))
        number = self._destination.unsubscribe(log)
        self.driver.wake()
        await self._answer(number, log, f"to unsubscribe from '{topic}'")

    # Reading

    async def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record, or None if there is none within the time."""
        if self._progress.handed:
            self._progress.come_back()
        while not self._records:
            if not await self._more(timeout_s):
                return None
            self._unpack()
        return self._next_record()

    def _next_record(self) -> Record:
        record = self._records.popleft()
        if not self._records:
            self._hand_out_open()
        return record

    async def poll_many(self, count: int, timeout_s: float | None = None) -> list[Record]:
        """Up to so many records: those that are here, or the first to come."""
        first = await self.poll(timeout_s)
        found = [] if first is None else [first]
        while found and len(found) < count:
            if not self._records:
                if not self._queue or not self._can_name_publisher or self._is_beginning:
                    break
                self._unpack()
            elif len(self._records) <= count - len(found):
                found += self._rest_of_batch()
            else:
                found.append(self._next_record())
        return found

    def _rest_of_batch(self) -> list[Record]:
        records = list(self._records)
        self._records.clear()
        self._hand_out_open()
        return records

    def _hand_out_open(self) -> None:
        """The program has all of the batch that was taken apart last."""
        if self._open is not None:
            self._progress.hand_out(*self._open)
            self._open = None

    async def poll_table(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> "pyarrow.Table | None":
        """Everything that is here as one table, with no Python per event."""
        import pyarrow

        deliveries = await self.poll_batches(timeout_s, events_max=events_max)
        tables = [pyarrow.Table.from_batches([b.record_batch()]) for _, b in deliveries]
        return pyarrow.concat_tables(tables) if tables else None

    async def poll_batches(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> list[tuple[Arrival, Batch]]:
        """Everything that is here as checked batches, with where each comes from."""
        self._progress.come_back()
        if not await self._more(timeout_s):
            return []
        found: list[tuple[Arrival, Batch]] = []
        while self._queue and events_max > 0:
            delivery = self._take()
            opened = self._opened(delivery)
            if isinstance(delivery, Entry):
                log = self._log_names[delivery.partition.topic]
                self._progress.hand_out(log, delivery.partition.number, delivery.offset)
            if opened is not None:
                found.append((delivery, opened))
                events_max -= opened.count
        return found

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        if self._records:
            # As `poll` has it, without waiting for another coroutine.
            if self._progress.handed:
                self._progress.come_back()
            return self._next_record()
        record = await self.poll()
        if record is None:
            raise StopAsyncIteration
        return record

    async def close(self) -> None:
        """Commit what the program is through with, leave the group, and disconnect."""
        if self._committer is not None:
            self._committer.cancel()
        if self._membership is not None and self._driver is not None and not self._closed:
            with contextlib.suppress(QuorumError, RefusedError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._membership.leave()
        await super().close()
        self._arrived.set()
        self._begun.set()

    # Machine

    def _machine(self) -> Destination:
        return self._destination

    def _commands(self) -> Commands:
        return self._destination.commands

    def _replies(self, number: int) -> Mapping[NodeId, str]:
        return self._destination.replies(number)

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Delivery | Entry):
                if self._is_ours(outcome):
                    self._queue.put(outcome)
            else:
                self._on_news(outcome)
        if self._queue:
            self._arrived.set()
        self._pause_or_go_on()

    def _is_ours(self, arrival: Arrival) -> bool:
        """It is not if another member of the group reads it now, or if it is not validated, and we
        have just changed to what is."""
        if not isinstance(arrival, Entry) or not (self._membership or self._turning):
            return True
        log, number = self._log_names[arrival.partition.topic], arrival.partition.number
        topic = self._topic_of(log)
        if self._membership is not None:
            return (log, number) in self._membership.held and log == self._log_of(topic)
        if (topic, number) not in self._turning or arrival.seal:
            return True
        if self._turning[topic, number] is None:
            self._turning[topic, number] = arrival.origin
        return False

    def _on_news(self, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            self._on_answered(outcome)
        elif isinstance(outcome, Begun):
            self._unbegun.discard(outcome.partition)
            self._begun.set()
            if self._membership is not None:
                log = self._log_names[outcome.partition.topic]
                self._membership.on_begun((log, outcome.partition.number), outcome.offset)
        elif isinstance(outcome, Turned):
            self._on_turned(outcome)
        elif isinstance(outcome, Clamped | Trimmed | Skipped):
            self._on_gap(outcome)
        elif isinstance(outcome, Topology):
            before = self.cluster
            if self._adopt(outcome.cluster):
                self._strangers.clear()
                self._destination.adopt(outcome.cluster)
                self._read_new_partitions(before)
            self._is_current = True
        elif isinstance(outcome, Shared) and self._membership is not None and not self._closed:
            self._membership.on_shared(outcome)

    def _on_gap(self, gap: Clamped | Trimmed | Skipped) -> None:
        """Retention took what this consumer had yet to read, or a commit is beyond the end."""
        if not isinstance(gap, Clamped):
            self.counters["trimmed" if isinstance(gap, Trimmed) else "skipped"] += gap.count
            return
        place = self._log_names[gap.partition.topic], gap.partition.number
        self.counters["clamped"] += 1
        self._named[place] = gap.end
        if self._progress.done.get(place, 0) > gap.end:
            self._progress.done[place] = gap.end
        _log.warning(
            "offset %d of partition %d of '%s' was committed, and the partition ends at %d: "
            "reading goes on at the end", gap.offset, place[1], self._topic_of(place[0]), gap.end,
        )  # fmt: skip

    # Parts

    async def _more(self, timeout_s: float | None) -> bool:
        """Wait for a delivery; False when the time is up."""
        joins = self._membership is not None and self._membership.is_joining
        if self._asked or self._unbegun or self._put_off or joins:
            await self.subscribed()
        if not self._wanted:
            raise LocalProtocolError("subscribe to a topic before reading from it")
        while not self._queue:
            if self._closed:
                raise ClosedError("the consumer is closed")
            self._arrived.clear()
            try:
                await self._arrival(timeout_s)
            except TimeoutError:
                return False
        await self._know_publisher()
        if self._membership is not None:
            await self._membership.say_beginnings()
        return bool(self._queue) or await self._more(timeout_s)

    @property
    def _is_beginning(self) -> bool:
        return self._membership is not None and self._membership.is_beginning

    async def _know_publisher(self) -> None:
        """Who it is that published the next batch may be news to us."""
        if self._can_name_publisher or self.cluster.control is None:
            return
        self._strangers.add(member_of(self._queue.publisher))
        with contextlib.suppress(QuorumError):
            await self.learn_topology()

    @property
    def _can_name_publisher(self) -> bool:
        """Or have asked already, and nobody can."""
        publisher = self._queue.publisher
        return self.cluster.knows(publisher) or member_of(publisher) in self._strangers

    async def _arrival(self, timeout_s: float | None) -> None:
        """Wait for a delivery, and after a while tell what it is that we wait for."""
        if self._named:
            soon_s = TELL_AFTER_S if timeout_s is None else min(TELL_AFTER_S, timeout_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), soon_s)
            self._tell_what_is_beyond_the_end()
            timeout_s = None if timeout_s is None else timeout_s - soon_s
        await asyncio.wait_for(self._arrived.wait(), timeout_s)

    def _tell_what_is_beyond_the_end(self) -> None:
        """Whoever names an offset may wait for it, but should know that it is not there yet."""
        for (log, partition), offset in list(self._named.items()):
            reading = self._destination.reading(log, partition)
            if reading is None or reading.position != offset:
                del self._named[log, partition]
            elif reading.end < offset:
                del self._named[log, partition]
                _log.warning(
                    "partition %d of '%s' ends at offset %d; waiting for offset %d",
                    partition, self._topic_of(log), reading.end, offset,
                )  # fmt: skip

    def _take(self) -> Arrival:
        delivery = self._queue.take()
        self._pause_or_go_on()
        return delivery

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Read from replicas while somebody waits for an answer, though the queue is full."""
        self._waiting += 1
        self._pause_or_go_on()
        try:
            yield
        finally:
            self._waiting -= 1
            self._pause_or_go_on()

    def _pause_or_go_on(self) -> None:
        """With a full queue we read nothing from replicas, unless an answer is awaited."""
        is_full = self._queue.is_full
        is_paused = is_full and (not self._waiting or self._queue.bytes > WAITING_BYTES)
        if is_paused != self._is_paused:
            self._pause(is_paused)

    def _pause(self, paused: bool) -> None:
        self._is_paused = self._destination.is_held_back = paused
        for replica in self.cluster.replicas:
            if paused:
                self.transport.pause_reading(replica.number)
            else:
                self.transport.resume_reading(replica.number)

    def _opened(self, delivery: Arrival) -> Batch | None:
        """The batch, unless its publisher published something that is none."""
        try:
            return Batch(delivery.payload)
        except RemoteProtocolError:
            self.counters["malformed"] += 1
            return None

    def _unpack(self) -> None:
        """Turn the next batch into records."""
        if not self._queue:
            return
        delivery = self._take()
        opened = self._opened(delivery)
        if opened is None:
            return
        if isinstance(delivery, Entry):
            number, source = delivery.partition.topic, delivery.publisher
            place: tuple[int, int | None, bytes] = (
                delivery.partition.number, delivery.offset, delivery.seal,
            )  # fmt: skip
        else:
            number, source = delivery.stream.topic, delivery.stream.publisher
            place = (0, None, b"")
        topic, publisher = self._names[number], self.cluster.name_of(source)
        vouchers = self._voucher_names(delivery.vouchers)
        batch = (topic, publisher, delivery.sequence), (vouchers, *place)
        records = _records_of(opened, *batch)
        wanted = self._wanted.get(topic)
        if first := self._first_index(delivery):
            records = islice(records, first, None)
        if wanted is not None and not wanted.is_empty:
            records = filter(wanted.matches, records)
        self._records.extend(records)
        if isinstance(delivery, Entry):
            log = self._log_names[delivery.partition.topic]
            self._open = log, delivery.partition.number, delivery.offset
            self._open_origin = delivery.origin
            if not self._records:
                # Its filter left nothing of it.
                self._hand_out_open()

    def _first_index(self, delivery: Arrival) -> int:
        """Which event of a batch is the first that the program has not had."""
        if not isinstance(delivery, Entry) or not self._begun_with:
            return 0
        place = self._log_names[delivery.partition.topic], delivery.partition.number
        offset, first = self._begun_with.get(place, (-1, 0))
        if delivery.offset >= offset:
            self._begun_with.pop(place, None)
        return first if delivery.offset == offset else 0

    def _voucher_names(self, vouchers: tuple[NodeId, ...]) -> tuple[str, ...]:
        return tuple(self.cluster.member(replica).name for replica in vouchers)


def _records_of(
    opened: Batch,
    before: tuple[str, str, int],
    after: tuple[tuple[str, ...], int, int | None, bytes],
) -> Iterable[Record]:
    """The records of a batch, of which all have these first and last fields."""
    if opened.count < AT_ONCE_EVENTS_MIN:
        topic, publisher, sequence = before
        vouchers, partition, offset, seal = after
        return [
            Record(
                topic, publisher, sequence, index, each.key, each.value, each.headers,
                each.timestamp_us, each.urgent, vouchers, partition, offset, seal,
            )
            for index, each in enumerate(opened.events())
        ]  # fmt: skip
    # All at once, with no step in Python for each of them.
    return map(
        Record, *map(repeat, before), range(opened.count), *opened.columns(), *map(repeat, after)
    )


def _check_options(queue_events: int, lease_s: float, keep_s: float) -> None:
    if not 0 < keep_s * 1e6 <= KEEP_US_MAX:
        raise LocalProtocolError(
            f"offsets that are kept for {keep_s:g} s; allowed are up to {KEEP_US_MAX / 1e6:g}"
        )
    if queue_events < 1:
        raise LocalProtocolError(f"a queue of {queue_events} events; at least 1 is needed")
    if not LEASE_US_MIN <= lease_s * 1e6 <= LEASE_US_MAX:
        raise LocalProtocolError(
            f"a lease of {lease_s:g} s; allowed are {LEASE_US_MIN / 1e6:g} to "
            f"{LEASE_US_MAX / 1e6:g} s"
        )


def _check_start(start: object) -> None:
    is_offset = isinstance(start, int) and not isinstance(start, bool) and 0 <= start < 2**62
    if not is_offset and not isinstance(start, datetime) and start not in _TIMES_US:
        raise LocalProtocolError(
            f"start is {start!r}; allowed are 'begin', 'end', an offset, or a datetime"
        )
