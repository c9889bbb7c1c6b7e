"""Stores that somebody altered while their replica was stopped; what is on disk fits together."""

from collections.abc import Callable
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from quorate.core.header import BASIC
from quorate.crypto.identity import Identity
from quorate.crypto.sids import Place, Seal, body_of
from quorate.storage.frames import frames_in
from quorate.storage.heads import HeldHead, decode_head
from seals import sealed


def flipped(_: HeldHead, __: int, payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


def signed_again(
    signer: Identity,
    cluster: str,
    topic: str,
    mark: bytes,
    held: HeldHead,
    number: int,
    payload: bytes,
) -> bytes:
    """Another batch in place of this one, with a seal that holds."""
    seal, body = Seal.decode(payload), body_of(payload)
    other = seal.header._replace(kind=BASIC).encode() + body.replace(mark, mark.swapcase())
    place = Place.of(cluster, topic, held.partition, held.publisher)
    return sealed(
        place, held.first + number, other, time_us=seal.time_us, public_key=seal.public_key,
        sign=signer.sign,
    )  # fmt: skip


def alter_payloads(
    data: Path, what: bytes, change: Callable[[HeldHead, int, bytes], bytes] = flipped
) -> int:
    """Change the payloads of a journal that hold this, and make their frames check again."""
    changed = 0
    for path in sorted(data.glob("journal-*.log")):
        content = bytearray(path.read_bytes())
        for bounds in list(frames_in(memoryview(bytes(content)))):
            head = decode_head(memoryview(content)[bounds.head : bounds.payloads].tobytes())
            if not isinstance(head, HeldHead):
                continue
            at = bounds.payloads
            for number, length in enumerate(head.lengths):
                payload = bytes(content[at : at + length])
                if what in payload:
                    content[at : at + length] = change(head, number, payload)
                    changed += 1
                at += length
            checked = bytes(content[bounds.start + 4 : bounds.end])
            Struct("<I").pack_into(content, bounds.start, crc32c(checked))
        path.write_bytes(bytes(content))
    return changed
