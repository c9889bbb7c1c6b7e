"""Makes `tests/vectors/sids/*.json`: SIDs that hold, and SIDs that do not, with what must happen.

Keys follow from a name, and so do salts: `python tests/vectors/generate_sids.py` writes the same
bytes anywhere. `tests/crypto/test_sid_vectors.py` holds our code, and one that shares nothing with
it, against these files.

Three kinds of cases:
- `batches`: each stands for itself under a number in a line. `holds` says whether it is taken, and
  `is_malformed` that readers deliver nothing of it although it was.
- `lines`: what a producer hands in, one after the other. `ordered` says which of them are ordered.
- `stores`: what was ordered is known by its seal, and each store has something for it, or nothing.
  `serves` says which of them have what was ordered.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quorate.core import batch
from quorate.core.batch import Batch
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, NO_ROOT, Header, header_of
from quorate.crypto.events import events_root
from quorate.crypto.sids import Place, sign_together, signed, unsealed

HERE = Path(__file__).parent / "sids"
# Full names: the second is founded with the same name and keys.
CLUSTER, AGAIN = (f"vectors/{hashlib.sha256(each).hexdigest()}" for each in (b"one", b"two"))
TOPIC, PRODUCER, SESSION = "orders", 1000, 7
TIME_US = 1_800_000_000_000_000
SEAL = 288
# Where the fields of a seal are.
TIME, DIGEST, ROOT, SHEAF, LEAF, ZEROS, PATH, KEY, SIGNATURE = 16, 24, 56, 88, 89, 90, 96, 192, 224
SALT = hashlib.sha256(b"salt").digest()
# The order of the group in which Ed25519 counts.
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
PLACE = Place(CLUSTER, TOPIC, 3, PRODUCER, SESSION)


def key_of(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def public(name: str) -> bytes:
    return key_of(name).public_key().public_bytes_raw()


def batch_of(*values: bytes) -> bytes:
    return batch.encode([Event(b"key", value, (("h", b"1"),), TIME_US) for value in values])


def sealed(
    sequence: int,
    basic: bytes,
    *,
    key: str = "producer",
    place: Place = PLACE,
    salt: bytes = b"",
    header: dict[str, int] | None = None,
    **changed: Any,
) -> bytes:
    """This batch, signed with something changed."""
    seal = unsealed(basic, salt, time_us=TIME_US, root=NO_ROOT, public_key=public(key))
    seal = seal._replace(header=seal.header._replace(**header or {}), **changed)
    signature = key_of(key).sign(signed(place, sequence, seal))
    return seal._replace(signature=signature).encode() + salt + basic[HEADER_BYTES:]


def salted(sequence: int, basic: bytes, **changed: Any) -> bytes:
    """The same for a topic whose events are proved one by one."""
    root = events_root(SALT, Batch(basic).events())
    return sealed(sequence, basic, **{"salt": SALT, "root": root, **changed})


def sheaf(count: int) -> list[bytes]:
    """So many batches of one line, from number 1 on, under one signature."""
    batches = [batch_of(b"%d of %d" % (number, count)) for number in range(1, count + 1)]
    told = [
        (
            PLACE,
            number,
            unsealed(basic, b"", time_us=TIME_US, root=NO_ROOT, public_key=public("producer")),
        )
        for number, basic in enumerate(batches, 1)
    ]
    seals = sign_together(told, key_of("producer").sign)
    return [
        seal.encode() + basic[HEADER_BYTES:] for seal, basic in zip(seals, batches, strict=True)
    ]


def flip(data: bytes, at: int) -> bytes:
    at %= len(data)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


FIRST, SECOND, THIRD, OTHER = (batch_of(name) for name in (b"first", b"second", b"third", b"other"))


def single(name: str, payload: bytes, holds: bool, why: str, **more: Any) -> dict[str, Any]:
    case = {"name": name, "sequence": 1, "payload": payload.hex(), "holds": holds, "why": why}
    return {**case, **more}


def good() -> Iterator[dict[str, Any]]:
    one = "signed by the key of its producer for just this place"
    yield single("one event", sealed(1, FIRST), True, one)
    yield single("three events", sealed(1, batch_of(b"a", b"", b"c")), True, one)
    yield single("a later number", sealed(4096, FIRST), True, one, sequence=4096)
    yield single("a time before 1970", sealed(1, FIRST, time_us=-1), True, one)
    yield single("a tree of events", salted(1, FIRST), True, one, event_proofs=True)
    several = batch_of(b"a", b"b", b"c", b"d", b"e")
    yield single("a tree of five", salted(1, several), True, one, event_proofs=True)


def forged() -> Iterator[dict[str, Any]]:
    right = sealed(1, FIRST)
    wrong = "the signature is not over this"
    for name, at in (
        ("time", TIME), ("root", ROOT + 2), ("first half of the signature", SIGNATURE + 10),
        ("second half of the signature", SEAL - 2),
    ):  # fmt: skip
        yield single(f"another {name}", flip(right, at), False, wrong)
    header = header_of(right)
    for name, other in (
        ("number of events", header._replace(events=2)),
        ("number of headers", header._replace(headers=2)),
        ("number of bytes", header._replace(plain_bytes=header.plain_bytes + 1)),
    ):
        yield single(f"another {name}", other.encode() + right[HEADER_BYTES:], False, wrong)
    yield single(
        "another digest", flip(right, DIGEST), False, "the body is not what the seal names"
    )
    yield single("another public key", flip(right, KEY + 10), False, "that key is not pinned")
    number = int.from_bytes(right[SEAL - 32 : SEAL], "little") + GROUP_ORDER
    malleable = right[: SEAL - 32] + number.to_bytes(32, "little") + right[SEAL:]
    yield single("a second signature made from the first", malleable, False, wrong)
    nothing = right[: SEAL - 64] + bytes(64) + right[SEAL:]
    yield single("a signature of zeros", nothing, False, wrong)
    small = bytes([1]) + bytes(31)
    yield single(
        "a key of small order that signs everything",
        right[:KEY] + small + small + bytes(32) + right[SEAL:], False, "that key is not pinned",
    )  # fmt: skip
    yield single("a stranger's key", sealed(1, FIRST, key="stranger"), False, "it is not pinned")
    for name, fields in (
        ("no events", {"events": 0}),
        ("more events than a batch may have", {"events": 1_000_001, "plain_bytes": 4_000_004}),
        ("less than four bytes for each event", {"plain_bytes": 3}),
        ("more bytes than a batch may have", {"plain_bytes": 2**25 + 1}),
        ("a later version", {"version": 3}),
        ("a kind that is not known", {"kind": 2}),
        ("a number where zero is due", {"zero": 1}),
    ):
        yield single(name, sealed(1, FIRST, header=fields), False, "no header says that")
    yield single(
        "the kind of a basic batch", sealed(1, FIRST, header={"kind": 0}), False,
        "then nobody signed it",
    )  # fmt: skip
    yield single("the seal of version 1", b"qsd2" + right[4:], False, "it is no header")
    yield single(
        "a number where the zeros of the block are",
        flip(right, ZEROS), False, "there is one way to write a seal",
    )  # fmt: skip
    yield single(
        "a tree that nobody asked for", salted(1, FIRST), False, "event_proofs of the topic is off"
    )
    yield single("no tree", right, False, "event_proofs of the topic is on", event_proofs=True)


def malformed() -> Iterator[dict[str, Any]]:
    """Signed as they are: each is ordered and takes its offsets, and none has events to deliver."""
    wrong = "replicas do not look at bodies: it is ordered, and convicts its producer"
    for name, payload in (
        ("more events than there are", sealed(1, FIRST, header={"events": 2})),
        ("fewer events than there are", sealed(1, batch_of(b"a", b"b"), header={"events": 1})),
        ("more headers than there are", sealed(1, FIRST, header={"headers": 2})),
        ("more bytes than there are", sealed(1, FIRST, header={"plain_bytes": 400})),
        ("no columns", sealed(1, Header.of(1, 0, 8).encode() + b"anything")),
        ("an empty body", sealed(1, Header.of(7, 0, 28).encode())),
    ):
        yield single(name, payload, True, wrong, is_malformed=True)
    for name, payload in (
        ("a salt that is cut", sealed(1, Header.of(1, 0, 8).encode() + b"salt", root=b"r" * 32)),
        ("another count under a tree", salted(1, FIRST, header={"events": 2})),
    ):
        yield single(name, payload, True, wrong, is_malformed=True, event_proofs=True)


def together() -> Iterator[dict[str, Any]]:
    """Batches that share a signature."""
    for count in (2, 3, 5, 8):
        for number, payload in enumerate(sheaf(count), 1):
            yield single(
                f"number {number} of {count}",
                payload,
                True,
                "the path is in its seal",
                sequence=number,
            )
    first, second, third = sheaf(3)
    elsewhere = "its path leads to another root"

    def with_bytes(at: int, changed: bytes) -> bytes:
        return first[:at] + changed + first[at + len(changed) :]

    yield single("another size", with_bytes(SHEAF, b"\x04"), False, "the size is signed")
    yield single("another leaf", with_bytes(LEAF, b"\x01"), False, elsewhere)
    yield single("a leaf too many", with_bytes(SHEAF, b"\x03\x03"), False, "there are three")
    yield single("size 0", with_bytes(SHEAF, b"\x00\x00"), False, "there is at least one")
    yield single("size 9", with_bytes(SHEAF, b"\x09"), False, "there are eight at most")
    yield single("another sibling", flip(first, PATH), False, elsewhere)
    yield single("a longer path", flip(first, KEY - 1), False, "zeros fill it up")
    yield single("no path", with_bytes(PATH, bytes(96)), False, elsewhere)
    yield single("the path of another", with_bytes(SHEAF, second[SHEAF:KEY]), False, elsewhere)
    yield single("under the number of another", third, False, "it was signed for 3", sequence=2)
    alone = sealed(1, FIRST)
    padded = flip(alone, PATH)
    yield single("alone, and yet with a path", padded, False, "zeros fill it up")


def wrong_producer() -> Iterator[dict[str, Any]]:
    places: tuple[tuple[str, Any], ...] = (
        ("cluster", "other"), ("topic", "other"), ("partition", 4), ("producer", PRODUCER + 1),
        ("session", SESSION + 1),
    )  # fmt: skip
    for name, value in places:
        elsewhere = PLACE._replace(**{name: value})
        yield single(
            f"signed for another {name}", sealed(1, FIRST, place=elsewhere), False,
            "it was signed for another place",
        )  # fmt: skip
    again = PLACE._replace(cluster=AGAIN)
    yield single(
        "signed for another founding of the cluster", sealed(1, FIRST, place=again), False,
        "it was signed for another place",
    )  # fmt: skip
    shifted = PLACE._replace(cluster=CLUSTER + TOPIC[:1], topic=TOPIC[1:])
    yield single(
        "names that are the same when written together", sealed(1, FIRST, place=shifted), False,
        "names have their lengths before them",
    )  # fmt: skip
    theirs = sealed(1, FIRST, key="victim", place=PLACE._replace(producer=PRODUCER + 1))
    yield single("a batch of somebody else", theirs, False, "another key signed it")
    stolen = sealed(1, FIRST, public_key=public("victim"))
    yield single("somebody else's key", stolen, False, "that key is not pinned for this producer")


def truncated() -> Iterator[dict[str, Any]]:
    right = sealed(1, FIRST)
    for length in (0, 3, 15, 16, 17, SIGNATURE, SEAL - 1, SEAL, SEAL + 24, len(right) - 1):
        yield single(f"{length} bytes", right[:length], False, "something is missing")
    yield single("a byte more", right + b"\0", False, "the body is not what the seal names")
    yield single("no seal", FIRST, False, "there is no seal")
    yield single("two seals", right[:SEAL] + right, False, "the body is not what the seal names")
    yield single(
        "a salt without a tree", right[:SEAL] + SALT + right[SEAL:], False,
        "the body is not what the seal names",
    )  # fmt: skip


def line(name: str, handed_in: list[tuple[int, bytes]], ordered: list[int], why: str) -> Any:
    batches = [{"sequence": number, "payload": payload.hex()} for number, payload in handed_in]
    return {"name": name, "handed_in": batches, "ordered": ordered, "why": why}


def replayed() -> Iterator[Any]:
    first, second = sealed(1, FIRST), sealed(2, SECOND)
    once = "a number is ordered once"
    yield line("the same batch again", [(1, first), (1, first)], [0], once)
    yield line("under the next number", [(1, first), (2, first)], [0], "it was signed for 1")
    yield line("and then as it should be", [(1, first), (2, first), (2, second)], [0, 2], once)
    former = sealed(1, FIRST, place=PLACE._replace(session=SESSION - 1))
    yield line("from an earlier session", [(1, former), (1, first)], [1], "sessions are signed")


def reordered() -> Iterator[Any]:
    first, second, third = sealed(1, FIRST), sealed(2, SECOND), sealed(3, THIRD)
    yield line("in order", [(1, first), (2, second), (3, third)], [0, 1, 2], "as it should be")
    yield line("numbers swapped", [(1, second), (2, first)], [], "neither was signed for that")
    yield line("the second one first", [(2, second), (1, first)], [1], "it is handed in again")
    yield line("one left out", [(1, first), (3, third)], [0], "the third waits for the second")
    yield line(
        "left out and brought later", [(1, first), (3, third), (2, second), (3, third)],
        [0, 2, 3], "in the order of their numbers",
    )  # fmt: skip


def equivocated() -> Iterator[Any]:
    one, other, second = sealed(1, FIRST), sealed(1, OTHER), sealed(2, SECOND)
    yield line("two batches under one number", [(1, one), (1, other)], [0], "the first one counts")
    yield line("and the next", [(1, one), (1, other), (2, second)], [0, 2], "the line goes on")
    later = sealed(1, FIRST, time_us=TIME_US + 1)
    yield line("signed twice, at two times", [(1, one), (1, later)], [0], "that is another SID")


def stores() -> Iterator[Any]:
    right, other = sealed(1, FIRST), sealed(1, OTHER)
    swapped = right[:SEAL] + OTHER[HEADER_BYTES:]
    cases: list[tuple[str, list[bytes | None]]] = [
        ("there in each", [right, right, right]),
        ("swapped in one", [right, swapped, right]),
        ("missing in one", [None, right, right]),
        ("different in each", [swapped, other, flip(right, -1)]),
        ("right body, another seal", [other[:SEAL] + right[SEAL:], flip(right, TIME), right]),
        ("right body, another header", [FIRST, flip(right, 4), flip(right, 1)]),
        ("right in the last one", [None, swapped, right]),
        ("truncated in one", [right[:-1], right, right]),
        ("without its seal in one", [FIRST, right, right]),
        ("missing in each", [None, None, None]),
    ]
    for name, payloads in cases:
        yield {
            "name": name,
            "seal": right[:SEAL].hex(),
            "stores": [None if each is None else each.hex() for each in payloads],
            "serves": [at for at, each in enumerate(payloads) if each == right],
        }


def vectors() -> dict[str, dict[str, Any]]:
    """What each file says."""
    common = {
        "cluster": CLUSTER,
        "topic": TOPIC,
        "partition": PLACE.partition,
        "producer": PRODUCER,
        "session": SESSION,
        "public_key": public("producer").hex(),
    }
    kinds = {
        "batches": (good, malformed, together, forged, wrong_producer, truncated),
        "lines": (replayed, reordered, equivocated),
        "stores": (stores,),
    }
    return {
        make.__name__: {**common, "kind": kind, "cases": list(make())}
        for kind, makers in kinds.items()
        for make in makers
    }


def text_of(vector: dict[str, Any]) -> str:
    return json.dumps(vector, indent=1) + "\n"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name, vector in vectors().items():
        (HERE / f"{name}.json").write_text(text_of(vector))


if __name__ == "__main__":
    main()
