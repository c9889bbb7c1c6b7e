"""Makes `tests/vectors/sids/*.json`: SIDs that hold, and SIDs that do not, with what must happen.

Keys follow from a name, and so do salts: `python tests/vectors/generate_sids.py` writes the same
bytes anywhere. `tests/crypto/test_sid_vectors.py` holds our code, and one that shares nothing with
it, against these files.

Three kinds of cases:
- `batches`: each stands for itself under a number in a line. `holds` says whether it is taken.
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
from quorate.crypto.digests import payload_digest
from quorate.crypto.events import events_root
from quorate.crypto.sids import NO_ROOT, Place, Seal, sign_together, signed

HERE = Path(__file__).parent / "sids"
# Full names: the second is founded with the same name and keys.
CLUSTER, AGAIN = (f"vectors/{hashlib.sha256(each).hexdigest()}" for each in (b"one", b"two"))
TOPIC, PRODUCER, SESSION = "orders", 1000, 7
TIME_US = 1_800_000_000_000_000
SEAL = 274
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
    body: bytes,
    *,
    key: str = "producer",
    place: Place = PLACE,
    **changed: Any,
) -> bytes:
    """A batch behind its seal, signed with something changed."""
    seal = Seal(1, TIME_US, payload_digest(body), NO_ROOT, public(key), b"")._replace(**changed)
    signature = key_of(key).sign(signed(place, sequence, seal))
    return seal._replace(signature=signature).encode() + body


def salted(sequence: int, body: bytes, **changed: Any) -> bytes:
    """The same for a topic whose events are proved one by one."""
    root = events_root(SALT, Batch(body).events())
    return sealed(sequence, SALT + body, **{"root": root, **changed})


def sheaf(count: int) -> list[bytes]:
    """So many batches of one line, from number 1 on, under one signature."""
    batches = [batch_of(b"%d of %d" % (number, count)) for number in range(1, count + 1)]
    unsigned = [
        Seal(1, TIME_US, payload_digest(body), NO_ROOT, public("producer")) for body in batches
    ]
    told = [(PLACE, number, seal) for number, seal in enumerate(unsigned, 1)]
    seals = sign_together(told, key_of("producer").sign)
    return [seal.encode() + body for seal, body in zip(seals, batches, strict=True)]


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
    yield single("three events", sealed(1, batch_of(b"a", b"", b"c"), events=3), True, one)
    yield single("a later number", sealed(4096, FIRST), True, one, sequence=4096)
    yield single("a time before 1970", sealed(1, FIRST, time_us=-1), True, one)
    yield single("a tree of events", salted(1, FIRST), True, one, event_proofs=True)
    several = batch_of(b"a", b"b", b"c", b"d", b"e")
    yield single("a tree of five", salted(1, several, events=5), True, one, event_proofs=True)


def forged() -> Iterator[dict[str, Any]]:
    right = sealed(1, FIRST)
    wrong = "the signature is not over this"
    for name, at in (
        ("events", 4), ("time", 8), ("root", 50), ("first half of the signature", 220),
        ("second half of the signature", SEAL - 2),
    ):  # fmt: skip
        yield single(f"another {name}", flip(right, at), False, wrong)
    yield single("another digest", flip(right, 20), False, "the body is not what the seal names")
    yield single("another public key", flip(right, 190), False, "that key is not pinned")
    number = int.from_bytes(right[SEAL - 32 : SEAL], "little") + GROUP_ORDER
    malleable = right[: SEAL - 32] + number.to_bytes(32, "little") + right[SEAL:]
    yield single("a second signature made from the first", malleable, False, wrong)
    nothing = right[: SEAL - 64] + bytes(64) + right[SEAL:]
    yield single("a signature of zeros", nothing, False, wrong)
    small = bytes([1]) + bytes(31)
    yield single(
        "a key of small order that signs everything",
        right[:178] + small + small + bytes(32) + right[SEAL:], False, "that key is not pinned",
    )  # fmt: skip
    yield single("a stranger's key", sealed(1, FIRST, key="stranger"), False, "it is not pinned")
    yield single("more events than there are", sealed(1, FIRST, events=2), False, "there is one")
    yield single("no event", sealed(1, FIRST, events=0), False, "there is one")
    yield single("no batch", sealed(1, b"anything"), False, "the body is no batch")
    yield single("another magic", b"qsd1" + right[4:], False, "it is no seal")
    yield single(
        "a tree that nobody asked for", salted(1, FIRST), False, "event_proofs of the topic is off"
    )
    yield single("no tree", right, False, "event_proofs of the topic is on", event_proofs=True)


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
    yield single("another size", first[:80] + b"\x04" + first[81:], False, "the size is signed")
    yield single("another leaf", first[:81] + b"\x01" + first[82:], False, elsewhere)
    yield single("a leaf too many", first[:80] + b"\x03\x03" + first[82:], False, "there are three")
    yield single("size 0", first[:80] + b"\x00\x00" + first[82:], False, "there is at least one")
    yield single("size 9", first[:80] + b"\x09" + first[81:], False, "there are eight at most")
    yield single("another sibling", flip(first, 82), False, elsewhere)
    yield single("a longer path", flip(first, 177), False, "zeros fill it up")
    yield single("no path", first[:82] + bytes(96) + first[178:], False, elsewhere)
    yield single("the path of another", first[:80] + second[80:178] + first[178:], False, elsewhere)
    yield single("under the number of another", third, False, "it was signed for 3", sequence=2)
    alone = sealed(1, FIRST)
    padded = alone[:82] + b"\1" + alone[83:]
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
    for length in (0, 3, 4, 16, 209, SEAL - 1, SEAL, SEAL + 1, SEAL + 39, len(right) - 1):
        yield single(f"{length} bytes", right[:length], False, "something is missing")
    yield single("a byte more", right + b"\0", False, "the body is not what the seal names")
    yield single("no seal", FIRST, False, "there is no seal")
    yield single("two seals", right[:SEAL] + right, False, "the body is not what the seal names")


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
    swapped = right[:SEAL] + OTHER
    cases: list[tuple[str, list[bytes | None]]] = [
        ("there in each", [right, right, right]),
        ("swapped in one", [right, swapped, right]),
        ("missing in one", [None, right, right]),
        ("different in each", [swapped, other, right[:SEAL] + flip(FIRST, -1)]),
        ("right body, another seal", [other[:SEAL] + FIRST, flip(right, 8), right]),
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
        "batches": (good, together, forged, wrong_producer, truncated),
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
