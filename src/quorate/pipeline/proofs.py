"""What an archive keeps of a batch beside its rows, so that they can be proved from it alone.

A proof takes the bytes that the producer signed. Mostly these follow from the rows, since there is
one way to write a batch. Whether they do is tried where the batch is read, and the body is kept
where they do not (it was compressed, say). The seal is kept always, and the salt if there is one.

How batches lead to a checkpoint is told of many at a time, and kept in the first of them that has a
row. It has the leaves of all of them: a batch without rows, since its producer published something
that is none, has one too, and nobody could make it again from what an archive has.
"""

from typing import Any

import pyarrow

from quorate.core.batch import Batch, compression_of, encode
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import member_of, session_of
from quorate.core.ordering import SEAL_BYTES
from quorate.core.table import from_table
from quorate.crypto.digests import SEAL_MAGIC
from quorate.crypto.sids import SALT_BYTES, Seal
from quorate.protocol.ordering.ranges import RangeProof, Settled

FEW_EVENTS = 32


class Proofs:
    """The column `proof` of the batches of one stretch, in their order."""

    def __init__(self) -> None:
        # What was proved last: from which offset on, how, and by the row of which batch it is kept.
        self._first = 0
        self._range: RangeProof | None = None
        self._kept_by: int | None = None
        self._by_offset: dict[int, tuple[int, int, RangeProof | None]] = {}

    def note(self, settled: Settled, *, has_rows: bool) -> None:
        """This batch comes next, with rows or without."""
        if settled.proof is not None:
            self._first, self._range, self._kept_by = settled.offset, settled.proof, None
        if settled.leaf is None or not has_rows:
            return
        is_first = self._kept_by is None
        if self._kept_by is None:
            self._kept_by = settled.offset
        proof = self._range if is_first else None
        self._by_offset[settled.offset] = self._first, self._kept_by, proof

    def of(self, settled: Settled, batch: Batch, rows: pyarrow.RecordBatch) -> dict[str, Any]:
        """What the first row of this batch has."""
        first, kept_by, proof = self._by_offset.pop(settled.offset, (None, None, None))
        payload = settled.payload
        is_sealed = payload[: len(SEAL_MAGIC)] == SEAL_MAGIC
        has_salt = is_sealed and Seal.decode(payload).has_event_proofs
        return {
            "client": member_of(settled.publisher),
            "session": session_of(settled.publisher),
            "sequence": settled.sequence,
            "ordered": settled.time_us,
            "seal": payload[:SEAL_BYTES] if is_sealed else None,
            "salt": payload[SEAL_BYTES : SEAL_BYTES + SALT_BYTES] if has_salt else None,
            "body": None if _follows(batch, rows) else bytes(batch.payload),
            "range": kept_by,
            **(_nothing() if proof is None else _parts(proof, first)),
        }


def written(rows: pyarrow.Table | pyarrow.RecordBatch) -> bytes:
    """The batch that these rows are, in the one way to write it without compression."""
    return from_table(
        rows.select(["key", "value", "headers", "timestamp", "urgent"]), timestamp_us=0
    )


def _follows(batch: Batch, rows: pyarrow.RecordBatch) -> bool:
    """Whether the bytes of a batch are those that are made of its rows again.

    Both ways to write it make the same bytes. What Arrow takes to look at a few events is more than
    it takes to make objects of them.
    """
    if compression_of(batch.payload) != "none":
        return False
    try:
        again = encode(batch.events()) if batch.count <= FEW_EVENTS else written(rows)
    except LocalProtocolError:
        # Whatever a producer thinks of, it does not end the work of an archive.
        return False
    return again == batch.payload


def _parts(proof: RangeProof, first: int | None) -> dict[str, Any]:
    return {
        "first": first,
        "runs": [{"leaf": run.start, "count": len(run)} for run in proof.runs],
        "leaves": b"".join(proof.leaves),
        "path": b"".join(proof.path),
        "note": proof.checkpoint,
    }


def _nothing() -> dict[str, None]:
    return dict.fromkeys(("first", "runs", "leaves", "path", "note"))
