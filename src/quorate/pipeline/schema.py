"""The columns that Spark sees: of what is read from topics, and of what is published on them.

An event is a row. What a batch has once (who published it, what was verified) stands in each of its
rows, but for the proof: that is in the first row of a batch only, since it is large
and the same for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# What every topic has. `offset` is that of the event, its position in the partition, and `index`
# its place in the batch: the batch begins at the difference of both.
EVENT_COLUMNS: Final = (
    "key binary",
    "value binary",
    "headers array<struct<name: string, value: binary>>",
    "timestamp timestamp",
    "urgent boolean",
    "topic string",
    "partition int",
    "offset bigint",
    "index int",
    "producer string",
)
# What there is beside: what the producer signed for the batch (null if nobody signed it), and on
# topics that stand liars the batch's leaf in the order log and the size of a signed checkpoint that
# covers it.
VALIDATED_COLUMNS: Final = (
    "digest binary",
    "position bigint",
    "checkpoint bigint",
)

EVENTS: Final = ", ".join((*EVENT_COLUMNS, *VALIDATED_COLUMNS))

# With the option `proofs`, the first row of each batch has what it takes to prove it later: whose
# batch it is, when it was ordered, its seal, and its salt and its body where they do not follow
# from the rows. `range` is the offset of the batch that has, for itself and those behind it, how
# they lead to a checkpoint: their leaves, which runs of the order log they are, and the hashes
# beside them (`crypto/merkle.py`). `number` says which of these leaves is that of the batch.
PROOF_FIELDS: Final = (
    "client: bigint",
    "session: bigint",
    "sequence: bigint",
    "ordered: timestamp",
    "seal: binary",
    "salt: binary",
    "body: binary",
    "range: bigint",
    "number: int",
    "runs: array<struct<leaf: bigint, count: int>>",
    "leaves: binary",
    "path: binary",
    "note: string",
)
PROOF: Final = f"proof struct<{', '.join(PROOF_FIELDS)}>"


def events(*, proofs: bool = False) -> StructType:
    """The same as Spark's own type, also where there is no Spark to read text."""
    from pyspark.sql import types

    kinds: dict[str, types.DataType] = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "boolean": types.BooleanType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
    }

    def struct(*named: str, between: str = ": ") -> types.StructType:
        fields = (each.split(between, 1) for each in named)
        return types.StructType([types.StructField(name, kinds[kind]) for name, kind in fields])

    for fields in ("name: string, value: binary", "leaf: bigint, count: int"):
        kinds[f"array<struct<{fields}>>"] = types.ArrayType(struct(*fields.split(", ")))
    found = struct(*EVENT_COLUMNS, *VALIDATED_COLUMNS, between=" ")
    return found.add("proof", struct(*PROOF_FIELDS)) if proofs else found


# What a frame needs that is published; the other columns may be left out, and none may be added.
PUBLISHED: Final = ("key", "value", "headers", "timestamp", "urgent", "topic", "partition")
