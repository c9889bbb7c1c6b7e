"""Where batches stand, for whoever reads them with proof, or has to show one to others.

Source: RFC 6962, section 2.1.1; DESIGN section 6 (proof).

A replica answers with what its index knows of the batches from an offset on, and the hashes that
lead from their leaves together to the root of the last checkpoint: they are few, since what was
decided together has consecutive leaves. Nobody has to believe it: a checkpoint is signed by a
quorum, and leaves and hashes either lead to its root or they do not (`crypto/proofs.py`). So the
word of one correct replica is enough, and whoever asks goes on to the next one if it is not that of
a correct one.

The payload is no part of it: readers have that from any store.
"""

from functools import cache, partial

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    PROVEN_RUNS_MAX,
    Partition,
    ProvenRange,
    ProvenRun,
    ProveRange,
)
from quorate.crypto.merkle import runs_proof
from quorate.protocol.ordering.cosigning import Cosigning
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.records import Store
from quorate.protocol.outbox import Outbox

# To find an offset and to fold the hashes beside its leaf takes as long as handing out so much.
SEARCH_BYTES = 128 * 1024
# Each further run of a stretch takes as long as so much.
RUN_BYTES = 16 * 1024


class Proving:
    """One replica's answers about the order log of one group."""

    def __init__(
        self, group: int, log: OrderLog, store: Store, cosigning: Cosigning | None, outbox: Outbox
    ) -> None:
        self._group = group
        self._log = log
        self._store = store
        self._cosigning = cosigning
        self._outbox = outbox

    def on_prove(self, node: NodeId, prove: ProveRange) -> None:
        if not self._outbox.may_answer(node):
            return
        if self._cosigning is None:
            refuse(node, prove, "nobody signs the heads of this log", self._outbox)
            return
        partition = Partition(prove.topic, prove.partition)
        spots = self._store.runs(partition, prove.offset, prove.count)[:PROVEN_RUNS_MAX]
        if not spots:
            self._say_why(node, prove, partition)
            return
        size, checkpoint = self._cosigning.size, self._cosigning.checkpoint
        covered = [
            ProvenRun(
                min(count, size - spot.leaf), spot.publisher, spot.sequence, spot.time_us, spot.leaf
            )
            for count, spot in spots
            if spot.leaf < size
        ]
        if not covered:
            self._put_off(node, prove, "no checkpoint covers this offset yet")
            return
        try:
            leaves = [range(run.leaf, run.leaf + run.count) for run in covered]
            path = runs_proof(cache(partial(self._store.node, self._group)), leaves, size)
        except LocalProtocolError as error:
            # Our disk is a little behind, or the log began here with a snapshot.
            self._put_off(node, prove, str(error))
            return
        place = prove.topic, prove.partition, prove.number, prove.offset
        cost_bytes = SEARCH_BYTES + RUN_BYTES * len(covered) + len(checkpoint)
        self._outbox.answer(node, ProvenRange(*place, covered, path, checkpoint), cost_bytes)

    def _say_why(self, node: NodeId, prove: ProveRange, partition: Partition) -> None:
        start, _ = self._store.bounds(partition)
        end = self._log.partition(partition).end
        if prove.offset < start:
            sentence = f"offset {prove.offset} is not kept here any more; offset {start} is"
            refuse(node, prove, sentence, self._outbox)
        elif prove.offset >= end:
            sentence = f"offset {prove.offset} is not there yet; the partition ends at {end}"
            refuse(node, prove, sentence, self._outbox)
        else:
            self._put_off(node, prove, "this offset is yet to be written to the disk here")

    def _put_off(self, node: NodeId, prove: ProveRange, sentence: str) -> None:
        refuse(node, prove, sentence, self._outbox, is_final=False)


def refuse(
    node: NodeId, prove: ProveRange, sentence: str, outbox: Outbox, *, is_final: bool = True
) -> None:
    """Say that nothing is proved here, and why; if that `is_final`, asking again does not help."""
    if outbox.may_answer(node):
        place = prove.topic, prove.partition, prove.number, prove.offset
        outbox.answer(node, ProvenRange(*place, [], [], "", sentence, is_final), SEARCH_BYTES)
