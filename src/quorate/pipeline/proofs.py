"""What an archive keeps of a batch beside its rows, so that they can be proved from it alone.

A proof takes the bytes that were published. Mostly these follow from the rows, since there is one
way to write a batch. Whether they do is tried where the batch is read, and the body is kept where
they do not (it was compressed, say), as a basic batch has it. The seal of a signed batch is kept
always, and the salt if there is one.

How batches lead to a checkpoint is told of many at a time, and kept in the first of them that has a
row. It has the leaves of all of them: a batch without rows, since it is malformed or was not
asked for, has one too, and nobody could make it again from what an archive has.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow

from quorate.core.batch import Batch, encode
from quorate.core.columns import compression_of
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import (
    BASIC,
    HEADER_BYTES,
    SEAL_BYTES,
    columns_at,
    header_of,
    is_signed,
)
from quorate.core.ids import member_of, session_of
from quorate.core.table import from_table
from quorate.protocol.ordering.ranges import RangeProof, Settled

FEW_EVENTS = 32
# Where a signed batch has the digest of what is behind its seal.
SIGNED_DIGEST = slice(HEADER_BYTES + 8, HEADER_BYTES + 40)


class Proofs:
    """The column `proof` of the batches of one stretch, in their order."""

    def __init__(self) -> None:
        # What was proved last: how, how many of these batches came, and whose row keeps it.
        self._range: RangeProof | None = None
        self._count = 0
        self._kept_by: int | None = None
        self._by_offset: dict[int, tuple[int, int, RangeProof | None]] = {}

    def note(self, settled: Settled, *, has_rows: bool) -> None:
        """This batch comes next, with rows or without."""
        if settled.proof is not None:
            self._range, self._count, self._kept_by = settled.proof, 0, None
        number, self._count = self._count, self._count + 1
        if settled.leaf is None or not has_rows:
            return
        is_first = self._kept_by is None
        if self._kept_by is None:
            self._kept_by = settled.offset
        proof = self._range if is_first else None
        self._by_offset[settled.offset] = self._kept_by, number, proof

    def of(self, settled: Settled, batch: Batch, rows: pyarrow.RecordBatch) -> dict[str, Any]:
        """What the first row of this batch has."""
        kept_by, number, proof = self._by_offset.pop(settled.offset, (None, None, None))
        payload = bytes(batch.payload)
        seal = salt = None
        if is_signed(payload):
            seal, salt = payload[:SEAL_BYTES], payload[SEAL_BYTES : columns_at(payload)] or None
        return {
            "client": member_of(settled.publisher),
            "session": session_of(settled.publisher),
            "sequence": settled.sequence,
            "ordered": settled.time_us,
            "seal": seal,
            "salt": salt,
            "body": None if _follows(batch, rows) else _as_basic(payload),
            "range": kept_by,
            "number": number,
            **_parts(proof),
        }


def payload_of(kept: Mapping[str, Any], rows: pyarrow.Table) -> bytes:
    """The batch that has these rows, as it was published; `kept` is what its first row has."""
    seal, salt = kept["seal"], kept["salt"] or b""
    body: bytes = written(rows) if kept["body"] is None else kept["body"]
    if seal is None:
        return body
    if body[:HEADER_BYTES] != header_of(seal)._replace(kind=BASIC).encode():
        raise RemoteProtocolError("rows that are not what the header says that was signed")
    return bytes(seal + salt + body[HEADER_BYTES:])


def written(rows: pyarrow.Table | pyarrow.RecordBatch) -> bytes:
    """The batch that these rows are, in the one way to write it without compression."""
    return from_table(
        rows.select(["key", "value", "headers", "timestamp", "urgent"]), timestamp_us=0
    )


def _follows(batch: Batch, rows: pyarrow.RecordBatch) -> bool:
    """Whether the columns of a batch are those that are made of its rows again.

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
    return again == _as_basic(bytes(batch.payload))


def _as_basic(payload: bytes) -> bytes:
    """The same batch without seal and salt."""
    header = header_of(payload)._replace(kind=BASIC)
    return header.encode() + payload[columns_at(payload) :]


def _parts(proof: RangeProof | None) -> dict[str, Any]:
    if proof is None:
        return dict.fromkeys(("runs", "leaves", "path", "note"))
    return {
        "runs": [{"leaf": run.start, "count": len(run)} for run in proof.runs],
        "leaves": b"".join(proof.leaves),
        "path": b"".join(proof.path),
        "note": proof.checkpoint,
    }
