"""Proving: from an offset of a Byzantine log topic to a file that convinces others.

    proof = await prove("cluster", "bob", "payments", 0, 4711)
    Path("proof.json").write_bytes(proof.render())

The proof is of the event at this offset where the topic has `event_proofs`, and else of the batch
that covers the offset. If its producer did not sign the batch, the proof says so.

The batch is read like any stretch (`ranges.py`), with what leads from its leaf to a checkpoint
that a quorum signed. So nothing that replicas say is believed: whoever sends what does not lead
there is passed over and reported, and one correct replica that stores the batch is enough.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping

import msgspec

from quorate.client.ranges import RangeReader
from quorate.client.session import ANSWER_TIMEOUT_S, ClusterLike, IdentityLike, check_partition
from quorate.core.errors import (
    LocalProtocolError,
    QuorumError,
    RefusedError,
    RemoteProtocolError,
)
from quorate.core.header import count_of
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.core.ordering import ProvenRange, ProveRange
from quorate.crypto.merkle import inclusion_in_runs
from quorate.crypto.proofs import EventProof, Keys, Proof, ProofError, verify
from quorate.crypto.sids import Place, Seal
from quorate.protocol.ordering.placement import GroupKind, group_of
from quorate.protocol.ordering.ranges import Settled
from quorate.protocol.topic import Topic

# After so long without the batch, replicas are asked whether they can prove it at all.
DOUBT_AFTER_S = 0.05
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


class Prover(RangeReader):
    """Makes any number of proofs, one after the other."""

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        super().__init__(cluster, identity)
        self._turn = asyncio.Lock()
        # What replicas answered last when they were asked, under this number, whether there is
        # anything to be proved.
        self._number = 0
        self._said: dict[NodeId, ProvenRange] = {}
        # Why none of them was of any help.
        self._causes: dict[NodeId, str] = {}

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
        contract = self.cluster.contract(topic)
        if not contract.is_log or group_of(contract) is not GroupKind.BYZANTINE:
            raise LocalProtocolError(
                f"topic '{topic}' is not ordered by replicas that bear liars, and there is nothing "
                f'to show to others; that takes order = "total" and protection = "byzantine"'
            )
        check_partition(topic, contract, partition)
        async with self._turn:
            batch = await self._find(topic, partition, offset, timeout_s)
        keys = Keys.of(self.cluster)
        proof = proof_of(batch, Place.of(keys.cluster, topic, partition, batch.publisher))
        verify(proof, keys)
        has_neighbours = proof.header is not None and count_of(proof.header) > 1
        if has_neighbours and contract.event_proofs and not whole:
            raise LocalProtocolError(
                f"the producer did not sign the batch that has offset {offset} of '{topic}', so "
                f"that its {count_of(proof.payload)} events are proved together or not at all; ask "
                "for the whole batch (--whole)"
            )
        return shown(proof, offset, keys, whole=whole)

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

    async def _find(self, topic: str, partition: int, offset: int, timeout_s: float) -> Settled:
        """The batch that has this offset, from the first replica that gives it with its place."""
        known = self._topics[topic]
        self._number, self._said = next(self._numbers), {}
        question = ProveRange(known.id, partition, self._number, offset, 1)
        stretch = range(offset, offset + 1)
        with self._opened(
            topic, partition, stretch, self._checks, validate=False, patience_s=timeout_s
        ) as opened:
            while True:
                with contextlib.suppress(TimeoutError):
                    found = await asyncio.wait_for(opened.next(), DOUBT_AFTER_S)
                    break
                self._raise_if_refused(known)
                self._listener.outbox.send_all(self._there(known), question)
                self.driver.wake()
        if isinstance(found, list):
            return found[0]
        assert found is not None
        said = {replica: each.sentence for replica, each in self._said.items() if each.sentence}
        self._causes = found.causes | said
        raise self._too_few(
            f"no replica could prove what stands at offset {offset} of partition {partition} of "
            f"'{topic}'",
            topic,
            needed=1,
        )

    def _raise_if_refused(self, topic: Topic) -> None:
        """Nobody has it, if all say so who are there, and so many as can be waited for."""
        final = {replica: each.sentence for replica, each in self._said.items() if each.is_final}
        if len(final) >= topic.quorum.reachable and final.keys() >= {*self._there(topic)}:
            ((sentence, _),) = Counter(final.values()).most_common(1)
            raise RefusedError(f"'{topic.name}': {sentence}")

    def _there(self, topic: Topic) -> list[NodeId]:
        return [replica for replica in topic.members if replica in self._listener.connected_peers]

    # Session

    def _hear(self, sender: NodeId, message: Message) -> None:
        if isinstance(message, ProvenRange) and message.number == self._number:
            self._said[sender] = message
        else:
            super()._hear(sender, message)

    def _replies(self, number: int) -> Mapping[NodeId, str]:
        return super()._replies(number) if number else self._causes


def proof_of(batch: Settled, place: Place) -> Proof:
    """That of a batch which was proved alone, or together with those behind it."""
    proof, leaf = batch.proof, batch.leaf
    assert batch.payload is not None
    assert proof is not None
    assert leaf is not None
    return Proof.of(
        place, batch.offset, batch.sequence, batch.time_us, batch.payload,
        leaf=leaf,
        tree_size=proof.size,
        path=inclusion_in_runs(leaf, proof.leaves, proof.runs, proof.size, proof.path),
        checkpoint=proof.checkpoint,
    )  # fmt: skip


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
