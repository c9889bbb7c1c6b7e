"""A council: the ordered halves of some replicas, and no network but the test's.

As on a `Stage`, messages lie in flight until the test delivers or drops them, and time is virtual.
What is different is that replicas have disks, and that every turn of each is on record with what
it writes down before it sends. A replica that is Byzantine has no machine: the test speaks for it.

Replicas are numbered from 0. `A`, `B` and `C` are publishers, `READER` reads. Clocks stand still,
so that a value is always the same bytes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TypeVar

from quorate.core.cluster import Cluster
from quorate.core.header import SEAL_BYTES, is_signed
from quorate.core.ids import NodeId, Sequence, topic_id
from quorate.core.messages import Message
from quorate.core.ordering import AnnounceSealed, Append, Line, Stored
from quorate.crypto.digests import batch_digest, descriptor
from quorate.crypto.receipts import Receipt
from quorate.crypto.sids import Place
from quorate.protocol.machine import Ready, Report
from quorate.protocol.misbehaviour import Rewrite, behave
from quorate.protocol.ordering.group import Group
from quorate.protocol.ordering.pace import PACE, Pace
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.records import Record
from quorate.protocol.ordering.replica import Found, Ordering
from quorate.protocol.ordering.room import ROOMS, Rooms
from quorate.protocol.ordering.validation import Sealer, Validation
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of
from quorate.protocol.outbox import Outbox
from quorate.protocol.topic import Topic
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimNotary, SimSigner, notaries_of
from quorate.sim.sealing import CLUSTER, public_key, signing_key
from quorate.sim.stores import SimStore
from stage import event, framed, opened, topic

A, B, C = 1000, 1001, 1002
READER = 1500
NAMES = {A: "a", B: "b", C: "c", READER: "reader"}
T = topic_id("t")
BYZANTINE: dict[str, object] = {"protection": "byzantine", "order": "total"}
CRASH: dict[str, object] = {"protection": "crash", "order": "total"}
# Producers sign with the keys of `sim/sealing.py`; `seals.py` makes what they hand in.
VALIDATED: dict[str, object] = {**BYZANTINE, "validated": True}
WALL_US = 1_000_000_000
ROUNDS_MAX = 200

_M = TypeVar("_M")


def payload_of(publisher: NodeId, sequence: Sequence, content: str = "") -> bytes:
    return f"{NAMES[publisher]}{sequence}{content}".encode()


def span_of(publisher: NodeId, first: Sequence, *payloads: bytes, before: bytes = b"") -> Span:
    """The span that takes these batches; `before` is the chain of the batch in front of them."""
    chains = chain_of(before or CHAIN_START, map(descriptor, map(framed, payloads)))
    return Span(publisher, T, 0, first, len(payloads), chains[-1])


def value_of(*spans: Span, time_us: int = WALL_US) -> bytes:
    return Value(time_us, spans).encode()


def sealed_by(
    publisher: NodeId, sequence: Sequence, value: bytes, signer: NodeId | None = None
) -> bytes:
    """A batch of one event for the validated topic `t`, signed by its publisher or by another."""
    key = publisher if signer is None else signer
    sealer = Sealer(
        CLUSTER, public_key(key), signing_key(key).sign, wall_us=lambda: WALL_US, salt=_no_salt
    )
    sealing = sealer.hold(topic(VALIDATED), publisher, 0, sequence, event(value))
    sealer.sign_held()
    return sealing.payload


def _no_salt(_: Place, __: int) -> bytes:
    raise AssertionError("no topic of a council has event proofs")


class Unlucky(Random):
    """Whatever a crash may lose, it loses."""

    def choice(self, seq: object) -> "str":  # type: ignore[override]
        return "lost"


@dataclass(slots=True)
class Turn:
    """What one replica wanted at one time."""

    replica: NodeId
    ready: Ready


@dataclass(slots=True)
class Seat:
    """One replica that follows the protocol."""

    ordering: Ordering
    outbox: Outbox
    disk: SimDisk
    store: SimStore
    signer: SimSigner
    notaries: dict[GroupKind, SimNotary]


@dataclass(slots=True)
class Flight:
    sender: NodeId
    receiver: NodeId
    message: Message


@dataclass
class Council:
    """The replicas of one group, wired together by hand."""

    table: Mapping[str, object] = field(default_factory=lambda: dict(BYZANTINE))
    f: int = 1
    byzantine: Collection[NodeId] = ()
    pace: Pace = PACE
    rooms: Rooms = ROOMS
    # What the cluster is at the beginning, if there are to be commands.
    cluster: Cluster | None = None
    snapshot_every: int = 4096
    slots_kept: int = 1 << 62
    # Whether heads of the log are signed; not, unless a test is about that.
    signs: bool = False
    # Who keeps large payloads of validated topics outside.
    depositing: Collection[NodeId] = ()
    now_us: int = 0
    seats: dict[NodeId, Seat] = field(default_factory=dict)
    flying: list[Flight] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    sent: list[Flight] = field(default_factory=list)
    # By how much each replica's clock is ahead.
    ahead_us: dict[NodeId, int] = field(default_factory=dict)
    # What some of them make of what their machines want.
    rewrites: dict[NodeId, Rewrite] = field(default_factory=dict)
    # How many times each replica got another key, as those know who start from now on.
    keys: dict[NodeId, int] = field(default_factory=dict)
    names: Mapping[NodeId, str] = field(default_factory=lambda: NAMES)

    def __post_init__(self) -> None:
        self.topic: Topic = topic(self.table, f=self.f)
        self.members = self.topic.members
        for replica in self.members:
            if replica not in self.byzantine:
                self._seat(replica, SimDisk())
        self.tick()

    def group(self, replica: NodeId) -> Group:
        (group,) = self.seats[replica].ordering.groups.values()
        return group

    @property
    def number(self) -> int:
        """The number of the group."""
        (group,) = next(iter(self.seats.values())).ordering.groups
        return int(group)

    # What happens

    def publish(
        self,
        publisher: NodeId,
        first: Sequence,
        *payloads: bytes,
        to: Iterable[NodeId] | None = None,
    ) -> None:
        """A publisher hands in batches of one event each, small ones of its own if none are given.

        What has the header of a batch is handed in as it is.
        """
        append = Append(
            T, 0, first, [*map(framed, payloads)] or [framed(payload_of(publisher, first))]
        )
        for replica in self.members if to is None else to:
            if replica in self.seats:
                self.step(publisher, replica, append)
        self.collect()

    def hand_in(
        self, publisher: NodeId, first: Sequence, *payloads: bytes, stores: Iterable[NodeId]
    ) -> None:
        """A publisher hands in large batches of a validated topic: whole to these replicas, and
        their seals to the others."""
        whole = Append(T, 0, first, [*payloads], [*map(batch_digest, payloads)])
        named = AnnounceSealed(T, 0, first, [payload[:SEAL_BYTES] for payload in payloads])
        keeping = set(stores)
        for replica in self.seats:
            self.step(publisher, replica, whole if replica in keeping else named)
        self.collect()

    def receipt(self, store: NodeId, publisher: NodeId, chain: bytes) -> Stored:
        """What a store signs for the first batch of a validated line, if it has it or not."""
        place = Place.of(CLUSTER, "t", 0, publisher)
        signature = SimSigner(store).attest(Receipt(place, 1, 1, chain).encode())
        return Stored(publisher, T, 0, 1, 1, chain, signature)

    def step(self, sender: NodeId, receiver: NodeId, message: Message) -> None:
        self.seats[receiver].ordering.step(sender, message)

    def say(self, sender: NodeId, receivers: Iterable[NodeId], message: Message) -> None:
        """Something that the sender's machine, if it has one, would not say."""
        for receiver in receivers:
            if receiver in self.seats:
                self.step(sender, receiver, message)
        self.collect()

    def deliver(self, choose: Callable[[Flight], bool] = lambda _: True) -> int:
        """Let those messages in flight arrive, and see what the replicas want then."""
        arriving, self.flying = (
            [flight for flight in self.flying if choose(flight)],
            [flight for flight in self.flying if not choose(flight)],
        )
        for flight in arriving:
            if flight.receiver in self.seats:
                self.step(flight.sender, flight.receiver, flight.message)
        self.collect()
        return len(arriving)

    def drop(self, choose: Callable[[Flight], bool] = lambda _: True) -> int:
        before = len(self.flying)
        self.flying = [flight for flight in self.flying if not choose(flight)]
        return before - len(self.flying)

    def settle(self, choose: Callable[[Flight], bool] = lambda _: True) -> None:
        """Deliver until nothing is in flight but what is not chosen, which is lost."""
        for _ in range(ROUNDS_MAX):
            self.drop(lambda flight: not choose(flight))
            if not self.deliver():
                return
        raise AssertionError(f"still {len(self.flying)} messages in flight")

    def tick(self) -> None:
        for seat in self.seats.values():
            seat.outbox.now_us = self.now_us
            seat.ordering.tick(self.now_us)
        self.collect()

    def run(self, seconds: float, choose: Callable[[Flight], bool] = lambda _: True) -> None:
        """Let time pass, and everything that is sent and chosen arrive."""
        end_us = self.now_us + round(seconds * 1_000_000)
        while self.now_us < end_us:
            self.now_us = min(self.now_us + self.pace.tick_us, end_us)
            self.tick()
            self.settle(choose)

    def crash(self, replica: NodeId) -> None:
        """It loses its memory, what was not synced, and what is on its way to it."""
        self.seats.pop(replica).disk.crash(Unlucky(0))
        self.drop(lambda flight: flight.receiver == replica)

    def restart(self, replica: NodeId, disk: SimDisk) -> None:
        self._seat(replica, disk)
        seat = self.seats[replica]
        seat.outbox.now_us = self.now_us
        seat.ordering.tick(self.now_us)
        self.collect()

    def rekey(self, replica: NodeId, knowing: Iterable[NodeId]) -> None:
        """A replica has another key, and these have come to know that."""
        self.keys[replica] = self.keys.get(replica, 0) + 1
        for each in knowing:
            self.learn_keys(each)

    def learn_keys(self, replica: NodeId) -> None:
        seat = self.seats[replica]
        seat.signer.keys.update(self.keys)
        for notary in seat.notaries.values():
            notary.keys.update(self.keys)
        self.group(replica).keys_changed()

    def reboot(self, replica: NodeId) -> None:
        disk = self.seats[replica].disk
        self.crash(replica)
        self.restart(replica, disk)

    # On record

    def messages(
        self,
        kind: type[_M],
        *,
        sender: NodeId | None = None,
        receiver: NodeId | None = None,
    ) -> list[_M]:
        """What was sent of this kind, whether or not it arrived."""
        return [
            flight.message
            for flight in self.sent
            if sender in (None, flight.sender)
            and receiver in (None, flight.receiver)
            and isinstance(flight.message, kind)
        ]

    def reports(self, by: NodeId | None = None) -> list[Report]:
        return [r for turn in self.turns if by in (None, turn.replica) for r in turn.ready.reports]

    def log(self, replica: NodeId) -> list[bytes]:
        """What partition 0 has as this replica reads it to others: values, and signed payloads."""
        group = self.group(replica)
        target = Line(A, T, 0).target
        found: list[bytes] = []
        end = 0
        while stretches := group.readers.read(target, end, 1 << 30):
            for stretch in stretches:
                found += [each if is_signed(each) else opened(each) for each in stretch.payloads]
            end = stretches[-1].end
        return found

    def collect(self) -> None:
        for replica in list(self.seats):
            self._take(replica)

    # Inside

    def _seat(self, replica: NodeId, disk: SimDisk) -> None:
        outbox, (store, found) = Outbox(), self._opened(disk)
        signer, notaries = SimSigner(replica, self.keys), {}
        if self.signs:
            notaries = notaries_of(replica, self.members, self.keys)
        outbox.now_us = self.now_us
        ordering = Ordering(
            replica,
            self._topics() if self.cluster is None else (),
            self.names,
            signer=signer,
            notaries=notaries,
            store=store,
            found=found,
            wall_us=partial(self._wall_us, replica),
            outbox=outbox,
            pace=self.pace,
            rooms=self.rooms,
            cluster=self.cluster,
            validation=self._validation(),
            snapshot_every=self.snapshot_every,
            deposits=replica in self.depositing,
        )
        self.seats[replica] = Seat(ordering, outbox, disk, store, signer, notaries)
        self.seats = dict(sorted(self.seats.items()))

    def _opened(self, disk: SimDisk) -> tuple[SimStore, Found]:
        """The store on this disk, and what was found there."""
        store = SimStore(disk, self.slots_kept)
        return store, store.found()

    def _topics(self) -> list[Topic]:
        return [self.topic]

    def _validation(self) -> Validation | None:
        return Validation(CLUSTER, self._topics(), {each: public_key(each) for each in NAMES})

    def _wall_us(self, replica: NodeId, _: int) -> int:
        return WALL_US + self.ahead_us.get(replica, 0)

    def _take(self, replica: NodeId) -> None:
        seat = self.seats[replica]
        has_more = True
        while has_more:
            has_more = seat.ordering.flush()
            ((_, ready),) = self.rewrites.get(replica, behave)(seat.outbox.take(), self.now_us)
            if not (ready.persist or ready.send or ready.reports or ready.deposit):
                continue
            self.turns.append(Turn(replica, ready))
            seat.disk.append(ready.persist)
            if ready.sync:
                seat.disk.sync()
            flights = [Flight(replica, receiver, message) for receiver, message in ready.send]
            self.sent += flights
            self.flying += flights


def records(turns: Iterable[Turn], kind: type[_M]) -> list[_M]:
    """What these turns wrote down, of one kind."""
    written: list[Record] = [record for turn in turns for record in turn.ready.persist]
    return [record for record in written if isinstance(record, kind)]
