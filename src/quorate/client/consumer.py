"""Subscribing: records out, one by one, many at a time, or as Arrow tables.

A live topic brings what is published from now on. A log topic can be read from any position:
its beginning, its end, an offset, or a time.

A consumer's own queue is bounded. When the program takes too little out of it, the consumer
stops reading from the replicas; their queues fill, and the topic's contract says what happens
then: producers are slowed, or the oldest or newest events of this subscriber are discarded.

A consumer validates the topics whose contract says so, unless `update_topology` says otherwise
(`modes.py`).

Offsets count events. An event counts as *handed out* when the call that brings it returns: `poll`
and each step of an iteration hand out one event, `poll_many` those in its list, `poll_batches` all
of its batches (from `Entry.skip` on), and `poll_table` all rows. `commit()` covers exactly what was
handed out, also in the middle of a batch; whoever goes on begins with the very next event. What is
committed automatically is what was handed out before the last call: the program may be busy yet
with what that brought.

What is not for this consumer is a gap in the offsets: malformed batches, basic ones if it
validates, what its filter leaves out, and what retention took. `position` moves past a gap as soon
as the consumer comes to it, and so does what `commit()` commits.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice, repeat
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from quorate.client.modes import Modes, checked_names
from quorate.client.queue import QUEUE_EVENTS, Arrival, Queue
from quorate.client.session import (
    ANSWER_TIMEOUT_S,
    ClusterLike,
    IdentityLike,
    Session,
    check_partition,
)
from quorate.client.sharing import Member, Progress, refuse_without
from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.control import (
    CONTROL_TOPIC,
    KEEP_US,
    KEEP_US_MAX,
    LEASE_US,
    LEASE_US_MAX,
    LEASE_US_MIN,
    GroupMode,
    full_name,
)
from quorate.core.errors import (
    ClosedError,
    LocalProtocolError,
    QuorateError,
    QuorumError,
    RefusedError,
    RemoteProtocolError,
)
from quorate.core.filter import Filter
from quorate.core.ids import MemberId, NodeId, TopicId, member_of, topic_id
from quorate.core.ordering import BEGIN_US, END_US, Partition
from quorate.protocol.destination import Destination
from quorate.protocol.machine import (
    Answered,
    Begun,
    Clamped,
    Delivery,
    Entry,
    Outcome,
    Passed,
    Shared,
    Skipped,
    Topology,
    Trimmed,
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
_ARRIVALS = (Entry, Delivery, Passed)


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
    # Of the event, on a log topic.
    offset: int | None = None
    # Whether its producer's signature, its position and its content were all checked.
    validated: bool = False


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
        # The batch of a log topic whose events are handed out now.
        self._open: Entry | None = None
        self._modes = Modes()
        # From where each partition is read, and those that are read with validation.
        self._begins: dict[tuple[str, int], Start] = {}
        self._checked: set[tuple[str, int]] = set()
        self.counters: Counter[str] = Counter()
        self._queue = Queue(queue_events)
        topics = topics_of(self.cluster)
        self._destination = self._machine = Destination(
            self.node, topics, self._macs, client_names(self.cluster),
            Validation.of(self.cluster, topics),
        )  # fmt: skip
        self._wanted: dict[str, Filter] = {}
        self._asked: dict[str, int] = {}
        self._refused: dict[str, Exception] = {}
        # The topic that a number stands for.
        self._names: dict[TopicId, str] = {}
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
            self._wanted[topic] = wanted
            self._starts[topic] = start
            self._names[topic_id(topic)] = topic
            self._asked[topic] = self._destination.subscribe(topic, wanted)
            if self._membership is not None:
                self._membership.want(topic)
            elif self.cluster.contract(topic).is_log:
                for partition in range(self.cluster.contract(topic).partitions):
                    self._drop_queued(topic, partition)
                    self._progress.forget((topic, partition))
                    self._read(topic, partition, start)

    def seek(self, topic: str, partition: int, start: Start) -> None:
        """Go on with a partition of a log topic from there. What is queued of it is dropped."""
        self._check_place(topic, partition, start)
        place = topic, partition
        if self._membership is not None and place not in self._membership.held:
            raise LocalProtocolError(
                f"partition {partition} of '{topic}' is not this member's of group "
                f"'{self._membership.group}'"
            )
        self._drop_queued(topic, partition)
        self._progress.forget(place)
        if isinstance(start, int):
            self._progress.done[place] = start
        self._read(topic, partition, start)
        if self._driver is not None:
            self._driver.wake()

    # Validated or basic

    async def update_topology(self, topics: Collection[str]) -> None:
        """From now on these topics are validated and all others are not (Kabis 2023, 2.1.3).

        In a consumer group the mode is the group's, which its first member chose: another one is
        refused. A topic that is read already goes on with the event after the last that was handed
        out: of a validated one with signed events only, of another one with all.
        """
        topics = checked_names(topics)
        await self._know(topics)
        before, self._modes = self._modes, Modes.of(self.cluster, topics)
        if self._membership is not None and self._membership.topics:
            # The mode of a group is its first member's.
            try:
                await self._membership.join()
            except QuorateError:
                self._modes = before
                raise
        changed = [
            place for place in self._begins if (place in self._checked) != self._validates(place[0])
        ]
        for place in changed:
            self._drop_queued(*place)
            offset = self._progress.next_of(place)
            self._read(*place, self._begins[place] if offset is None else offset)
            self._named.pop(place, None)
        if changed:
            self.driver.wake()
            await self.subscribed()

    def mode(self, topics: Collection[str]) -> GroupMode:
        """How a member reads these topics, as far as that can be chosen."""
        chosen = {self._validates(each) for each in topics if self.cluster.contract(each).validated}
        if len(chosen) > 1:
            raise LocalProtocolError(
                "members of a group validate all topics of the group that can be validated, or none"
            )
        return "" if not chosen else "validated" if chosen.pop() else "basic"

    def _validates(self, topic: str) -> bool:
        return self._modes.validates(self.cluster, topic)

    # Groups

    def assignment(self) -> list[tuple[str, int]]:
        """The partitions that are this member's of its group now."""
        return [] if self._membership is None else list(self._membership.held)

    def position(self, topic: str, partition: int) -> int | None:
        """The offset to go on with after what the program is through with, if it has read any."""
        self._progress.catch_up()
        return self._progress.done.get((topic, partition))

    async def commit(self, *, metadata: str = "", epoch: int = -1) -> None:
        """Have the cluster remember how far this member is. All that was handed out counts.

        `metadata` (at most 4 KiB) and the `epoch` of a leader are kept with the offsets.
        """
        self._come_back()
        if not self._records:
            self._pass_gaps()
        note = (epoch, metadata) if metadata or epoch >= 0 else None
        await refuse_without(self._membership).commit(note)

    def committed(self, topic: str, partition: int) -> Committed | None:
        """What was committed last of a partition of this member, if anything was."""
        found = refuse_without(self._membership).committed((topic, partition))
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
        topic, number = place
        return number < self.cluster.contract(topic).partitions

    def begin(self, place: tuple[str, int], offset: int | None) -> None:
        if offset is None:
            self._read(*place, self._starts[place[0]])
        else:
            self._read(*place, offset, is_committed=True)
            # Its group has been there.
            self._named.pop(place, None)
        self._begun.set()

    def end(self, place: tuple[str, int]) -> None:
        self._destination.stop_reading_partition(*place)
        self._begins.pop(place, None)
        self._unbegun.discard(_partition(place))
        self._begun.set()
        self._drop_queued(*place)

    def _drop_queued(self, topic: str, partition: int) -> None:
        target = _partition((topic, partition))
        if self._open is not None and self._open.partition == target:
            self._close_open()
        self._queue.drop(target)
        self._pause_or_go_on()

    def _close_open(self) -> None:
        """The program gets no more of the batch that was taken apart last, until it is read again.

        The records that are here are those of that batch.
        """
        if self._progress.open is not None and self._records[0].offset is not None:
            self._progress.close(self._records[0].offset)
        self._open = None
        self._records.clear()

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
        check_partition(topic, contract, partition)
        _check_start(start)
        if topic not in self._wanted:
            raise LocalProtocolError(f"subscribe to topic '{topic}' before seeking in it")

    def _read(
        self, topic: str, partition: int, start: Start, *, is_committed: bool = False
    ) -> None:
        place, validate = (topic, partition), self._validates(topic)
        self._unbegun.add(_partition(place))
        self._named.pop(place, None)
        self._begins[place] = start
        (self._checked.add if validate else self._checked.discard)(place)
        if isinstance(start, int):
            self._named[place] = start
            if is_committed:
                self._destination.read_from_commit(topic, partition, start, validate=validate)
            else:
                self._destination.read(topic, partition, start, validate=validate)
            return
        if isinstance(start, datetime):
            time_us = (start.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        else:
            time_us = _TIMES_US[start]
        self._destination.read_from_time(topic, partition, time_us, validate=validate)

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
                    self._read(topic, partition, start)

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
            await self._answer(number, topic, f"to subscribe to '{topic}'")
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
            topic = self._names[next(iter(self._unbegun)).topic]
            members = len(self.cluster.placement(topic))
            raise self._too_few(
                "too few replicas say where a partition begins",
                topic,
                needed=members - self.cluster.f,
            ) from None
        if self._membership is not None:
            await self._membership.say_beginnings()

    async def unsubscribe(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._asked.pop(topic, None)
        if self._membership is not None:
            await self._membership.drop(topic)
            if not self._membership.topics:
                self._destination.commands.leave(self._membership.group)
        if self.cluster.contract(topic).is_log:
            for partition in range(self.cluster.contract(topic).partitions):
                self._begins.pop((topic, partition), None)
                self._drop_queued(topic, partition)
                self._unbegun.discard(_partition((topic, partition)))
        number = self._destination.unsubscribe(topic)
        await self._answer(number, topic, f"to unsubscribe from '{topic}'")

    # Reading

    async def poll(self, timeout_s: float | None = None) -> Record | None:
        """The next record, or None if there is none within the time."""
        self._come_back()
        if not self._records:
            ends_at = _ends_at(timeout_s)
            while not self._records:
                if not await self._more(ends_at):
                    return None
                self._unpack()
        return self._next_record()

    def _come_back(self) -> None:
        """The program asks for more, or says so: it is through with what it had."""
        if self._progress.handed:
            self._progress.come_back()
        if self._records:
            self._progress.reached = self._records[0].offset

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
                self._pass_gaps()
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
            self._progress.close(self._open.end)
            self._open = None

    async def poll_table(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> "pyarrow.Table | None":
        """Everything that is here as one table, with no Python per event."""
        import pyarrow

        deliveries = await self.poll_batches(timeout_s, events_max=events_max)
        tables = [
            pyarrow.Table.from_batches([batch.record_batch()]).slice(_skip_of(arrival))
            for arrival, batch in deliveries
        ]
        return pyarrow.concat_tables(tables) if tables else None

    async def poll_batches(
        self, timeout_s: float | None = None, *, events_max: int = 1_000_000
    ) -> list[tuple[Arrival, Batch]]:
        """Everything that is here as checked batches, with where each comes from.

        Of the events of an `Entry`, the first `skip` are left out.
        """
        if self._open is not None:
            # The rest of it comes first.
            skip = self._records[0].index
            self._queue.put_back(msgspec.structs.replace(self._open, skip=skip))
            self._close_open()
        self._come_back()
        if not await self._more(_ends_at(timeout_s)):
            return []
        found: list[tuple[Arrival, Batch]] = []
        for delivery in self._queue.take_many(events_max):
            if isinstance(delivery, Passed):
                self._progress.pass_on(self._place_of(delivery), delivery.offset)
                continue
            opened = self._opened(delivery)
            if opened is not None:
                if isinstance(delivery, Entry):
                    self._progress.hand_out(self._place_of(delivery), delivery.end)
                found.append((delivery, opened))
        self._pass_gaps()
        return found

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        if self._records:
            # As `poll` has it, without waiting for another coroutine.
            if self._progress.handed:
                self._progress.come_back()
            self._progress.reached = self._records[0].offset
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

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if not isinstance(outcome, _ARRIVALS):
                self._on_news(outcome)
            elif self._membership is None or self._is_ours(outcome):
                self._queue.put(outcome)
        if self._queue:
            self._arrived.set()
        self._pause_or_go_on()

    def _is_ours(self, arrival: Arrival | Passed) -> bool:
        """It is not if another member of the group reads it now."""
        if self._membership is None or isinstance(arrival, Delivery):
            return True
        return self._place_of(arrival) in self._membership.held

    def _place_of(self, outcome: Entry | Passed | Begun | Clamped) -> tuple[str, int]:
        return self._names[outcome.partition.topic], outcome.partition.number

    def _on_news(self, outcome: Outcome) -> None:
        if isinstance(outcome, Answered):
            self._on_answered(outcome)
        elif isinstance(outcome, Begun):
            self._on_begun(outcome)
        elif isinstance(outcome, Clamped):
            self._on_clamped(outcome)
        elif isinstance(outcome, Trimmed):
            # Retention took what this consumer had yet to read.
            self.counters["trimmed"] += outcome.count
            passed = Passed(outcome.partition, outcome.offset + outcome.count)
            if self._is_ours(passed):
                self._queue.put(passed)
        elif isinstance(outcome, Skipped):
            self.counters["skipped"] += outcome.count
        elif isinstance(outcome, Topology):
            before = self.cluster
            if self._adopt(outcome.cluster):
                self._strangers.clear()
                self._destination.adopt(outcome.cluster)
                self._read_new_partitions(before)
            self._is_current = True
        elif isinstance(outcome, Shared) and self._membership is not None and not self._closed:
            self._membership.on_shared(outcome)

    def _on_begun(self, begun: Begun) -> None:
        self._unbegun.discard(begun.partition)
        self._begun.set()
        place = self._place_of(begun)
        if not isinstance(self._begins.get(place), datetime | None):
            self._begins[place] = begun.offset
        if self._membership is not None:
            self._membership.on_begun(place, begun.offset)

    def _on_clamped(self, clamped: Clamped) -> None:
        """What was committed is beyond the end."""
        place = self._place_of(clamped)
        self.counters["clamped"] += 1
        self._named[place] = clamped.end
        if self._progress.done.get(place, 0) > clamped.end:
            self._progress.done[place] = clamped.end
        _log.warning(
            "offset %d of partition %d of '%s' was committed, and the partition ends at %d: "
            "reading goes on at the end", clamped.offset, place[1], place[0], clamped.end,
        )  # fmt: skip

    # Parts

    async def _more(self, ends_at: float | None) -> bool:
        """Wait for a delivery; False when the time is up."""
        joins = self._membership is not None and self._membership.is_joining
        if self._asked or self._unbegun or self._put_off or joins:
            await self.subscribed()
        if not self._wanted:
            raise LocalProtocolError("subscribe to a topic before reading from it")
        self._pass_gaps()
        while not self._queue:
            if self._closed:
                raise ClosedError("the consumer is closed")
            self._arrived.clear()
            try:
                await self._arrival(None if ends_at is None else ends_at - time.monotonic())
            except TimeoutError:
                return False
            self._pass_gaps()
        await self._know_publisher()
        if self._membership is not None:
            await self._membership.say_beginnings()
        return bool(self._queue) or await self._more(ends_at)

    def _pass_gaps(self) -> None:
        """What comes next of some partitions may be said to be further on."""
        while passed := self._queue.passed():
            self._progress.pass_on(self._place_of(passed), passed.offset)
        self._pause_or_go_on()

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
        for (topic, partition), offset in list(self._named.items()):
            reading = self._destination.reading(topic, partition)
            if reading is None or reading.position != offset:
                del self._named[topic, partition]
            elif reading.end < offset:
                del self._named[topic, partition]
                _log.warning(
                    "partition %d of '%s' ends at offset %d; waiting for offset %d",
                    partition, topic, reading.end, offset,
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
        except RemoteProtocolError as error:
            if not self.counters["malformed"]:
                _log.warning("a malformed batch is left out, and so are all others: %s", error)
            self.counters["malformed"] += 1
            if isinstance(delivery, Entry):
                self._progress.pass_on(self._place_of(delivery), delivery.end)
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
        else:
            number, source = delivery.stream.topic, delivery.stream.publisher
        topic, publisher = self._names[number], self.cluster.name_of(source)
        records = _records_of(
            opened, (topic, publisher, delivery.sequence), self._voucher_names(delivery.vouchers),
            (delivery.partition.number, delivery.offset, self._place_of(delivery) in self._checked)
            if isinstance(delivery, Entry) else None,
        )  # fmt: skip
        wanted = self._wanted.get(topic)
        if skip := _skip_of(delivery):
            records = islice(records, skip, None)
        if wanted is not None and not wanted.is_empty:
            records = filter(wanted.matches, records)
        self._records.extend(records)
        if isinstance(delivery, Entry):
            if self._records:
                self._open = delivery
                self._progress.begin(self._place_of(delivery))
            else:
                # Its filter left nothing of it.
                self._progress.pass_on(self._place_of(delivery), delivery.end)

    def _voucher_names(self, vouchers: tuple[NodeId, ...]) -> tuple[str, ...]:
        return tuple(self.cluster.member(replica).name for replica in vouchers)


def _records_of(
    opened: Batch,
    before: tuple[str, str, int],
    vouchers: tuple[str, ...],
    place: tuple[int, int, bool] | None,
) -> Iterable[Record]:
    """The records of a batch, of which all have these first and last fields.

    On a log topic, `place` is its partition, its first offset, and whether it was validated.
    """
    if opened.count < AT_ONCE_EVENTS_MIN:
        topic, publisher, sequence = before
        partition, offset, validated = (0, None, False) if place is None else place
        return [
            Record(
                topic, publisher, sequence, index, each.key, each.value, each.headers,
                each.timestamp_us, each.urgent, vouchers, partition,
                None if offset is None else offset + index, validated,
            )
            for index, each in enumerate(opened.events())
        ]  # fmt: skip
    # All at once, with no step in Python for each of them.
    fields = *map(repeat, before), range(opened.count), *opened.columns(), repeat(vouchers)
    if place is None:
        return map(Record, *fields)
    partition, offset, validated = place
    return map(
        Record, *fields, repeat(partition), range(offset, offset + opened.count), repeat(validated)
    )


def _ends_at(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s


def _skip_of(arrival: Arrival) -> int:
    return arrival.skip if isinstance(arrival, Entry) else 0


def _partition(place: tuple[str, int]) -> Partition:
    return Partition(topic_id(place[0]), place[1])


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
