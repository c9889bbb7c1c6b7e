"""The leaf of a batch in the order log: what a position is, in one way to write it.

Source: RFC 6962, section 2.1; DESIGN section 3.

    "qbl2", u32 topic, u16 partition, u64 offset, u64 publisher, u64 sequence, i64 time, digest (32)

All numbers are big-endian. The offset is that of the batch's first event. The topic is the number
that follows from its name (`core/ids.py`), the publisher a client's number in the low half and its
session in the high half, the time that of the slot which decided it, in microseconds, and the
digest that of the batch (`digests.py`).
"""

from struct import Struct

LEAF = Struct(">4sIHQQQq32s")
LEAF_VERSION = b"qbl2"
