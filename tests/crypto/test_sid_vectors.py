"""SIDs that are kept in files: the generator makes them again, and two implementations agree.

The second one is written from the text at the top of `crypto/sids.py`, `digests.py` and `events.py`
and shares nothing with our code, nor its library for signatures.
"""

import hashlib
import importlib.util
import json
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from council import Council
from quorate.core.batch import Batch
from quorate.core.contract import Contract
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import header_of
from quorate.core.ids import node_of, topic_id
from quorate.core.ordering import Append, Line
from quorate.crypto.digests import batch_digest, descriptor, seal_digest
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.topic import Topic

VECTORS = Path(__file__).parents[1] / "vectors"
FILES = sorted((VECTORS / "sids").glob("*.json"))
BY_NAME = {path.stem: json.loads(path.read_text()) for path in FILES}
Vector = dict[str, Any]


def cases_of(kind: str) -> list[Any]:
    return [
        pytest.param(vector, case, id=f"{name}: {case['name']}")
        for name, vector in BY_NAME.items()
        if vector["kind"] == kind
        for case in vector["cases"]
    ]


def test_the_generator_makes_the_same_files() -> None:
    spec = importlib.util.spec_from_file_location("generate_sids", VECTORS / "generate_sids.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    made = {name: generator.text_of(vector) for name, vector in generator.vectors().items()}
    assert made == {path.stem: path.read_text() for path in FILES}


# From the text


def sid_of(vector: Vector, sequence: int, seal: bytes) -> bytes:
    """ "quorate sid v2", newline, names behind their lengths, numbers in fixed widths."""
    names = b""
    for name in (vector["cluster"].encode(), vector["topic"].encode()):
        names += pack("<H", len(name)) + name
    place = pack("<HII", vector["partition"], vector["producer"], vector["session"])
    header_and_time, digest_and_root, key = seal[:24], seal[24:88], seal[192:224]
    return (
        b"quorate sid v2\n" + names + place + pack("<Q", sequence)
        + header_and_time + digest_and_root + key
    )  # fmt: skip


def signed_bytes(vector: Vector, sequence: int, seal: bytes) -> bytes | None:
    """ "quorate sheaf v1", newline, size and root of the tree over what is signed together."""
    size, leaf, path = seal[88], seal[89], [seal[at : at + 32] for at in (96, 128, 160)]
    hashed = hashlib.sha256(b"\0" + sid_of(vector, sequence, seal)).digest()
    if not leaf < size <= 8:
        return None
    root = climbed(hashed, leaf, size, path)
    return None if any(map(any, path)) else b"quorate sheaf v1\n" + bytes([size]) + root


def climbed(node: bytes, leaf: int, size: int, path: list[bytes]) -> bytes:
    """Takes from the path what it needs."""
    if size == 1:
        return node
    left = 1
    while 2 * left < size:
        left *= 2
    if leaf < left:
        below = climbed(node, leaf, left, path)
        return hashlib.sha256(b"\1" + below + path.pop(0)).digest()
    below = climbed(node, leaf - left, size - left, path)
    return hashlib.sha256(b"\1" + path.pop(0) + below).digest()


def holds(vector: Vector, sequence: int, payload: bytes, *, event_proofs: bool = False) -> bool:
    """The seal is 288 bytes, the first 16 of which are the header; then comes the body."""
    if len(payload) < 288:
        return False
    seal, body = payload[:288], payload[288:]
    version, kind, zero, events, _, plain_bytes = unpack("<BBHIII", seal[:16])
    if (version, kind, zero, any(seal[90:96])) != (2, 1, 0, False):
        return False
    if not 1 <= events <= 1_000_000 or not 4 * events <= plain_bytes <= 32 * 1024 * 1024:
        return False
    named, root, key, signature = seal[24:56], seal[56:88], seal[192:224], seal[224:]
    if key.hex() != vector["public_key"] or any(root) != event_proofs:
        return False
    if blake3(body).digest() != named:
        return False
    signed = signed_bytes(vector, sequence, seal)
    if signed is None:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def ordered(vector: Vector, handed_in: list[tuple[int, bytes]]) -> list[int]:
    """Each number once, in order, without gaps, if its seal holds."""
    found: list[int] = []
    for at, (sequence, payload) in enumerate(handed_in):
        if sequence == len(found) + 1 and holds(vector, sequence, payload):
            found.append(at)
    return found


def content_of(payload: bytes) -> bytes:
    """The header and a hash of what follows, hashed in a mode of their own.

    That is the signature block, if the body is what it names.
    """
    if payload[1:2] == b"\0":
        return described(payload[:16] + blake3(payload[16:]).digest())
    if payload[24:56] == blake3(payload[288:]).digest():
        return of_seal(payload[:288])
    return b"not what any seal leads to"


def of_seal(seal: bytes) -> bytes:
    context = "quorate 2026-11-19 the signature block of a batch"
    return described(seal[:16] + blake3(seal[16:], derive_key_context=context).digest())


def described(descriptor: bytes) -> bytes:
    context = "quorate 2026-11-19 the digest of a batch"
    return blake3(descriptor, derive_key_context=context).digest()


# Each case


def topic_of(vector: Vector, *, event_proofs: bool = False) -> Topic:
    table = {
        "protection": "byzantine", "order": "total", "validated": True, "partitions": 8,
        "event_proofs": event_proofs,
    }  # fmt: skip
    return Topic(vector["topic"], Contract.parse(vector["topic"], table), (0, 1, 2, 3), 1)


def validation_of(vector: Vector, topic: Topic) -> Validation:
    keys = {vector["producer"]: bytes.fromhex(vector["public_key"])}
    return Validation(vector["cluster"], [topic], keys)


def line_of(vector: Vector) -> Line:
    publisher = node_of(vector["producer"], vector["session"])
    return Line(publisher, topic_id(vector["topic"]), vector["partition"])


@pytest.mark.parametrize(("vector", "case"), cases_of("batches"))
def test_a_batch_is_taken_if_its_seal_holds_and_not_otherwise(vector: Vector, case: Vector) -> None:
    sequence, payload = case["sequence"], bytes.fromhex(case["payload"])
    event_proofs = case.get("event_proofs", False)
    validation = validation_of(vector, topic_of(vector, event_proofs=event_proofs))
    try:
        # A basic batch is taken as what it is.
        validation.check_batches(line_of(vector), sequence, [payload], [descriptor(payload)])
        is_taken = header_of(payload).is_signed
    except RemoteProtocolError:
        is_taken = False

    assert is_taken is case["holds"]
    assert holds(vector, sequence, payload, event_proofs=event_proofs) is case["holds"]
    if is_taken and case.get("is_malformed"):
        with pytest.raises(RemoteProtocolError):
            Batch(payload)
    elif is_taken:
        assert len(Batch(payload).events()) == header_of(payload).events


class Clerk(Council):
    """Replicas of the cluster that the vectors are about."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        super().__init__({"protection": "byzantine", "order": "total"})

    def _seat(self, replica: int, disk: Any) -> None:
        super()._seat(replica, disk)
        ordering, topic = self.seats[replica].ordering, topic_of(self.vector)
        validation = validation_of(self.vector, topic)
        ordering.topics = {topic.id: topic}
        ordering._names = {self.vector["producer"]: "producer"}
        for group in ordering.groups.values():
            group._validation = validation

    def ordered_at(self, replica: int) -> list[bytes]:
        found: list[bytes] = []
        read, target, offset = self.group(replica).readers.read, line_of(self.vector).target, 0
        while stretches := read(target, offset, 1 << 30):
            found += [payload for stretch in stretches for payload in stretch.payloads]
            offset = stretches[-1].end
        return found


@pytest.mark.parametrize(("vector", "case"), cases_of("lines"))
def test_of_what_a_producer_hands_in_this_is_ordered(vector: Vector, case: Vector) -> None:
    handed_in = [(each["sequence"], bytes.fromhex(each["payload"])) for each in case["handed_in"]]
    clerk, line = Clerk(vector), line_of(vector)

    for sequence, payload in handed_in:
        append = Append(line.topic, line.partition, sequence, [payload])
        clerk.say(line.publisher, clerk.seats, append)
        clerk.run(0.1)

    expected = [handed_in[at][1] for at in case["ordered"]]
    assert [clerk.ordered_at(replica) for replica in clerk.seats] == 4 * [expected]
    assert ordered(vector, handed_in) == case["ordered"]


@pytest.mark.parametrize(("vector", "case"), cases_of("stores"))
def test_a_store_serves_what_was_ordered_or_is_found_out(vector: Vector, case: Vector) -> None:
    seal = bytes.fromhex(case["seal"])
    served = [None if each is None else bytes.fromhex(each) for each in case["stores"]]
    ours = [
        at
        for at, each in enumerate(served)
        if each is not None and batch_digest(each) == seal_digest(seal)
    ]
    theirs = [
        at
        for at, each in enumerate(served)
        if each is not None and content_of(each) == of_seal(seal)
    ]
    assert ours == theirs == case["serves"]


def test_the_root_of_a_tree_of_events_is_as_the_text_says() -> None:
    """RFC 6962, section 2.1, over salted leaves."""
    (case,) = [each for each in BY_NAME["good"]["cases"] if each["name"] == "a tree of five"]
    payload = bytes.fromhex(case["payload"])
    salt = payload[288:320]
    leaves = []
    for index, value in enumerate((b"a", b"b", b"c", b"d", b"e")):
        written = pack("<qB", 1_800_000_000_000_000, 2)
        for part in (b"key", value, b"h", b"1"):
            written += pack("<I", len(part)) + part
        own_salt = blake3(pack("<I", index), key=salt).digest()
        leaves.append(hashlib.sha256(b"\0" + own_salt + written).digest())
    assert tree_of(leaves) == payload[56:88]


def tree_of(leaves: list[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    left = 1
    while 2 * left < len(leaves):
        left *= 2
    return hashlib.sha256(b"\1" + tree_of(leaves[:left]) + tree_of(leaves[left:])).digest()
