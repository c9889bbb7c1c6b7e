"""Proving: from an offset of a Byzantine log topic to a file that convinces others.

    proof = await prove("cluster", "bob", "payments", 0, 4711)
    Path("proof.json").write_bytes(proof.render())

The proof is of the event at this offset where the topic has `event_proofs`, and else of the batch
that covers the offset. If its producer did not sign the batch, the proof says so.

Replicas are asked one after the other for where the batch stands, and for the batch itself. Nothing
that they say is believed: it has to verify, with the keys of the cluster (`crypto/proofs.py`).
Whoever says something that does not is passed over and reported. So one correct replica is enough
for the position, and one correct store for the batch.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

import msgspec

from quorate.client.session import ANSWER_TIMEOUT_S, ClusterLike, IdentityLike, Session
from quorate.core.errors import (
    LocalProtocolError,
    QuorateError,
    QuorumError,
    RefusedError,
    RemoteProtocolError,
)
from quorate.core.header import are_possible, count_of
from quorate.core.ids import NodeId, member_of, session_of, topic_id
from quorate.core.ordering import (
    Absent,
    Chained,
    Entries,
    Follow,
    Partition,
    Prove,
    Proven,
    Wants,
)
from quorate.core.quorum import Quorum
from quorate.crypto.proofs import (
    FORMAT,
    EventProof,
    Keys,
    Proof,
    ProofError,
    enough_of,
    parts_of,
    verify,
)
from quorate.crypto.sids import Seal
from quorate.protocol.control.client import Commands
from quorate.protocol.machine import Answered, Outcome, Report, Topology
from quorate.protocol.ordering.placement import GroupKind, group_of, stores_of
from quorate.protocol.source import Source
from quorate.runtime.driver import Handler
from quorate.runtime.topics import topics_of

# A replica that has not answered for so long is passed over, and asked again in its turn.
REPLICA_TIMEOUT_S = 1.0
# A head is signed within some tens of milliseconds.
ASK_AGAIN_S = 0.05
# How long to wait for what the cluster is now, where its file has the topic anyway.
TOPOLOGY_TIMEOUT_S = 2.0


async def prove(
    cluster: ClusterLike,
    identity: IdentityLike,
    topic: str,
    partition: int,
    offset: int,
    *,
    whole: bool = False,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Proof:
    """A proof of what stands there: the event, or all of the batch that it is in.

    Where the topic has `event_proofs`, other events are shown only with `whole`.
    """
    async with Prover(cluster, identity) as prover:
        return await prover.prove(topic, partition, offset, whole=whole, timeout_s=timeout_s)


class Prover(Session):
    """Makes any number of proofs, one after the other."""

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        super().__init__(cluster, identity)
        self._source = Source(self.node, topics_of(self.cluster), self._macs, session=1)
        self._numbers = count(1)
        self._search: _Search | None = None
        self._turn = asyncio.Lock()

    async def prove(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        whole: bool = False,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Proof:
        """As the function of this name."""
        if not 0 <= offset < 2**63:
            raise LocalProtocolError(f"offset {offset}; allowed are 0 to {2**63 - 1}")
        await self._learn(topic)
        self._check_place(topic, partition)
        async with self._turn:
            search = _Search(topic, Partition(topic_id(topic), partition), offset)
            self._search = search
            try:
                proof = await self._find(search, timeout_s)
            finally:
                self._search = None
        has_neighbours = proof.header is not None and count_of(proof.header) > 1
        if has_neighbours and self.cluster.contract(topic).event_proofs and not whole:
            raise LocalProtocolError(
                f"the producer did not sign the batch that has offset {offset} of '{topic}', so "
                f"that its {count_of(proof.payload)} events are proved together or not at all; ask "
                "for the whole batch (--whole)"
            )
        return shown(proof, offset, Keys.of(self.cluster), whole=whole)

    # Parts

    async def _learn(self, topic: str) -> None:
        """The keys may be others than those of our file, and the topic may be new."""
        if topic in self.cluster.topics:
            if self.cluster.control is not None and not self._is_current:
                # Without a quorum for that, our file has to do.
                with contextlib.suppress(QuorumError):
                    await self.learn_topology(TOPOLOGY_TIMEOUT_S)
        else:
            await self._know([topic])

    def _check_place(self, topic: str, partition: int) -> None:
        contract = self.cluster.contract(topic)
        if not contract.is_log or group_of(contract) is not GroupKind.BYZANTINE:
            raise LocalProtocolError(
                f"topic '{topic}' is not ordered by replicas that bear liars, and there is nothing "
                f'to show to others; that takes order = "total" and protection = "byzantine"'
            )
        if not 0 <= partition < contract.partitions:
            raise LocalProtocolError(
                f"topic '{topic}' has no partition {partition}; "
                f"it has partitions 0 to {contract.partitions - 1}"
            )

    async def _find(self, search: "_Search", timeout_s: float) -> Proof:
        """Ask one replica after the other, again and again, until something verifies."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        order = stores_of(self.cluster.placement(search.topic), search.partition)
        while loop.time() < deadline_s:
            for replica in [each for each in order if each in self.driver.connected_peers]:
                await self._ask(replica, search)
                proof = search.fitting(replica, Keys.of(self.cluster))
                if proof is not None:
                    self._report_others(search, proof)
                    return proof
            self._raise_if_refused(search, order)
            await asyncio.sleep(ASK_AGAIN_S)
        raise self._too_few(
            f"no replica could prove what stands at offset {search.offset} of partition "
            f"{search.partition.number} of '{search.topic}'",
            search.topic,
            needed=1,
        )

    async def _ask(self, replica: NodeId, search: "_Search") -> None:
        number = next(self._numbers)
        search.begin(replica, number)
        place, offset = search.partition, search.offset
        self.driver.send(replica, Prove(*place, number, offset))
        self.driver.send(replica, Follow(*place, number, offset, offset + 1, Wants.ALL))
        try:
            await asyncio.wait_for(search.answered.wait(), REPLICA_TIMEOUT_S)
        except TimeoutError:
            search.said.setdefault(replica, f"no answer within {REPLICA_TIMEOUT_S:g} s")

    def _raise_if_refused(self, search: "_Search", members: Collection[NodeId]) -> None:
        """Nobody has it, if all say so who are there, and so many as can be waited for."""
        there = [replica for replica in members if replica in self.driver.connected_peers]
        needed = Quorum(len(members), self.cluster.f).reachable
        if len(search.final) >= needed and all(replica in search.final for replica in there):
            ((sentence, _),) = Counter(search.final.values()).most_common(1)
            raise RefusedError(f"'{search.topic}': {sentence}")

    def _report_others(self, search: "_Search", proof: Proof) -> None:
        for replica, why in search.others_than(proof, Keys.of(self.cluster)):
            self._on_report(Report(replica, "bad-proof", why))

    # Session

    def _machine(self) -> Source:
        return self._source

    def _commands(self) -> Commands:
        return self._source.commands

    def _replies(self, number: int) -> dict[NodeId, str]:
        return {} if self._search is None else self._search.said

    def _handlers(self) -> dict[type, Handler]:
        return {
            Proven: self._on_proven,
            Entries: self._on_entries,
            Absent: self._on_absent,
            Chained: _on_chained,
        }

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Answered):
                self._on_answered(outcome)
            elif isinstance(outcome, Topology):
                self._adopt(outcome.cluster)

    def _on_proven(self, sender: NodeId, proven: Proven) -> None:
        if self._search is not None:
            self._search.on_proven(sender, proven)

    def _on_entries(self, sender: NodeId, entries: Entries) -> None:
        if self._search is not None:
            self._search.on_entries(sender, entries)

    def _on_absent(self, sender: NodeId, absent: Absent) -> None:
        if self._search is not None:
            self._search.on_absent(sender, absent)


@dataclass(slots=True)
class _Search:
    """What replicas said of one place: each has one word on where it is, and one on what it is."""

    topic: str
    partition: Partition
    offset: int
    # Why a replica is of no help, as far as it said so, and who need not be asked again.
    said: dict[NodeId, str] = field(default_factory=dict)
    final: dict[NodeId, str] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    _positions: dict[NodeId, Proven] = field(default_factory=dict)
    _batches: dict[NodeId, Entries] = field(default_factory=dict)
    # Whom we ask now, by which number, and what we have yet to hear.
    _asked: NodeId = -1
    _number: int = 0
    _lacks_position: bool = True
    _lacks_batch: bool = True

    def begin(self, replica: NodeId, number: int) -> None:
        self._asked, self._number = replica, number
        self._lacks_position = self._lacks_batch = True
        for known in (self.said, self.final, self._positions, self._batches):
            known.pop(replica, None)
        self.answered.clear()

    def on_proven(self, sender: NodeId, proven: Proven) -> None:
        place = (proven.topic, proven.partition, proven.number, proven.offset)
        if sender != self._asked or place != (*self.partition, self._number, self.offset):
            return
        self._lacks_position = False
        if proven.sentence:
            self.said[sender] = proven.sentence
            if proven.is_final:
                self.final[sender] = proven.sentence
                # There is no batch to be had from it, either.
                self._lacks_batch = False
        else:
            self._positions[sender] = proven
        self._note()

    def on_entries(self, sender: NodeId, entries: Entries) -> None:
        if sender != self._asked or entries.partition_of != self.partition:
            return
        first = msgspec.structs.replace(entries, payloads=entries.payloads[:1])
        if are_possible(first.payloads) and self.offset in range(*first.offsets):
            self._lacks_batch = False
            self._batches[sender] = first
            self._note()

    def on_absent(self, sender: NodeId, absent: Absent) -> None:
        place = (absent.topic, absent.partition, absent.offset)
        if sender == self._asked and place == (*self.partition, self.offset):
            self._lacks_batch = False
            self._note()

    def fitting(self, latest: NodeId, keys: Keys) -> Proof | None:
        """A proof that verifies, of a position and a batch of which one is the latest word."""
        for place, proven in self._positions.items():
            for source, entries in self._batches.items():
                if latest not in (place, source):
                    continue
                try:
                    return _proof(self.topic, proven, entries, keys)
                except QuorateError as error:
                    self.said.setdefault(latest, str(error))
        self._forget_some(keys)
        return None

    def others_than(self, proof: Proof, keys: Keys) -> list[tuple[NodeId, str]]:
        """Who said something that does not go with what was proved."""
        found: list[tuple[NodeId, str]] = []
        right = proof.publisher, proof.offset, proof.sequence, [proof.payload]
        for replica, entries in self._batches.items():
            if (entries.publisher, entries.offset, entries.first, entries.payloads) != right:
                found.append((replica, f"sent another batch than the one at offset {self.offset}"))
        for replica, proven in self._positions.items():
            try:
                verify(_with_position(proof, proven, keys), keys)
            except QuorateError as error:
                found.append((replica, str(error)))
        return found

    def _forget_some(self, keys: Keys) -> None:
        """Of the batches that did not fit, as many are kept as replicas may lie, and one."""
        liars = len(keys.cosigners) - keys.needed
        for replica in list(self._batches)[: -(liars + 1)]:
            del self._batches[replica]

    def _note(self) -> None:
        if not self._lacks_position and not self._lacks_batch:
            self.answered.set()


def _proof(topic: str, proven: Proven, entries: Entries, keys: Keys) -> Proof:
    """What a position and a batch make together, if that verifies."""
    (payload,) = entries.payloads
    if (entries.publisher, entries.offset, entries.first, entries.time_us) != (
        proven.publisher, proven.start, proven.sequence, proven.time_us,
    ):  # fmt: skip
        raise RemoteProtocolError("it tells of another batch than it, or others, sent")
    checkpoint, size = enough_of(proven.checkpoint, keys)
    seal, header, body = parts_of(payload)
    proof = Proof(
        format=FORMAT,
        cluster=keys.cluster,
        topic=topic,
        partition=proven.partition,
        offset=proven.start,
        producer=member_of(proven.publisher),
        session=session_of(proven.publisher),
        sequence=proven.sequence,
        time_us=proven.time_us,
        seal=seal,
        header=header,
        body=body,
        leaf=proven.leaf,
        tree_size=size,
        path=proven.path,
        checkpoint=checkpoint,
    )
    verify(proof, keys)
    return proof


def _with_position(proof: Proof, proven: Proven, keys: Keys) -> Proof:
    checkpoint, size = enough_of(proven.checkpoint, keys)
    return msgspec.structs.replace(
        proof,
        offset=proven.start,
        producer=member_of(proven.publisher),
        session=session_of(proven.publisher),
        sequence=proven.sequence,
        time_us=proven.time_us,
        leaf=proven.leaf,
        path=proven.path,
        tree_size=size,
        checkpoint=checkpoint,
    )


def shown(proof: Proof, offset: int, keys: Keys, *, whole: bool) -> Proof:
    """The proof of the event at this offset alone, if its producer signed a tree of events; else,
    or if the whole batch is wanted, that of the batch."""
    if whole or proof.seal is None or not Seal.decode(proof.seal).has_event_proofs:
        return proof
    try:
        found = EventProof.of(proof.payload, offset - proof.offset)
        alone = msgspec.structs.replace(proof, body=None, event=found)
        verify(alone, keys)
    except (RemoteProtocolError, ProofError) as error:
        raise RefusedError(
            f"the producer of this batch signed events that are not those of the batch, so that "
            f"only the whole batch is proved ({error})"
        ) from None
    return alone


def _on_chained(_: NodeId, __: Chained) -> None:
    """How the partition goes on is of no interest here."""
