"""Another verifier of proofs, that shares no line with ours.

It is written from the texts (C2SP signed-note, tlog-checkpoint and tlog-cosignature; RFC 6962,
section 2.1) and from what docs/ARCHITECTURE.md says of seals and leaves. It uses nothing of this
project: Ed25519 and BLAKE3 come from their libraries, all else from Python's.

It looks at one proof with a JSON parser that takes anything, so it is not strict about how that is
written. What it insists on is what is signed: `check` returns who cosigned, or raises
`AssertionError`.
"""

import base64
import hashlib
import json
import tomllib
from collections.abc import Iterable
from typing import Any

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def check(file: bytes, origin: str, cosigners: dict[str, bytes], needed: int) -> set[str]:
    """The names of those cosigners who vouch for the position of what this proof is about."""
    proof = json.loads(file)
    assert proof["format"] == "quorate proof v2"
    assert origin == f"quorate/{proof['cluster']}/byzantine", "of another cluster"
    if "seal" in proof:
        check_producer(proof)
    said_origin, size, root, names = checkpoint(proof["checkpoint"], cosigners)
    assert said_origin == origin, "a checkpoint of another log"
    assert len(names) >= needed, f"only {sorted(names)} have signed"
    path = [base64.b64decode(each) for each in proof["path"]]
    assert root_over(leaf_hash(proof), proof["leaf"], size, path) == root, "not in the tree"
    if "event" in proof:
        check_event(proof)
    return names


def origin_of(cluster_file: str) -> str:
    """What the order log of this cluster is called: its name, and its identity in hexadecimal."""
    file = tomllib.loads(cluster_file)
    head, replicas = file["cluster"], file["replica"]
    members: list[bytes] = []
    for each in [*replicas, *file.get("client", [])]:
        members += [str(each["number"]).encode(), each["name"].encode(), each["party"].encode()]
        members += [base64.b64decode(each["sign_key"]), base64.b64decode(each["mac_key"])]
    founders = over("quorate 2026 founding members of a cluster", members)
    if "founders" in head:
        founders = bytes.fromhex(head["founders"])
    n = head.get("orderers", len(replicas))
    numbers = [str(n).encode(), str(head["f"]).encode()]
    parts = [bytes.fromhex(head["nonce"]), head["name"].encode(), *numbers, founders]
    identity = over("quorate 2026 identity of a cluster", parts)
    return f"quorate/{head['name']}/{identity.hex()}/byzantine"


def over(context: str, parts: Iterable[bytes]) -> bytes:
    written = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return blake3(written, derive_key_context=context).digest()


# C2SP


def checkpoint(note: str, cosigners: dict[str, bytes]) -> tuple[str, int, bytes, set[str]]:
    """Origin, size and root of a checkpoint, and which of these cosigners signed it."""
    # "the text is separated from the signatures by the last empty line in the note"
    at = note.rindex("\n\n")
    text, signatures = note[: at + 1], note[at + 2 :]
    assert signatures.endswith("\n")
    origin, size, root, *extensions = text.removesuffix("\n").split("\n")
    assert origin
    assert all(extensions), "extension lines are not empty"
    assert size == str(int(size)), "no leading zeroes"
    names = set()
    for line in signatures.removesuffix("\n").split("\n"):
        dash, name, signature = line.split(" ")
        assert dash == "\u2014"
        decoded = base64.b64decode(signature, validate=True)
        key = cosigners.get(name)
        if key is not None and decoded[:4] == key_id(name, key):
            check_cosignature(text, key, decoded[4:])
            names.add(name)
    return origin, int(size), base64.b64decode(root, validate=True), names


def key_id(name: str, key: bytes) -> bytes:
    # SHA-256(<name> || "\n" || 0x04 || 32-byte Ed25519 cosigner public key)[:4]
    return hashlib.sha256(name.encode() + b"\n" + b"\x04" + key).digest()[:4]


def check_cosignature(text: str, key: bytes, timestamped: bytes) -> None:
    # struct { u64 timestamp; opaque ed25519_signature[64]; }, the timestamp in big-endian order
    assert len(timestamped) == 8 + 64
    timestamp = int.from_bytes(timestamped[:8], "big")
    assert timestamp < 2**63
    message = f"cosignature/v1\ntime {timestamp}\n{text}".encode()
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(timestamped[8:], message)
    except InvalidSignature:
        raise AssertionError("a cosignature of a known key that does not verify") from None


# RFC 6962


def root_over(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that PATH(m, D[n]) leads to: its definition in section 2.1.1, read backwards."""
    assert 0 <= index < size
    if size == 1:
        assert not path, "a path that is too long"
        return leaf
    assert path, "a path that is too short"
    # "Let k be the largest power of two smaller than n"
    k = 1
    while 2 * k < size:
        k *= 2
    *rest, last = path
    if index < k:
        return node_hash(root_over(leaf, index, k, rest), last)
    return node_hash(last, root_over(leaf, index - k, size - k, rest))


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


# What this project says


def leaf_hash(proof: dict[str, Any]) -> bytes:
    """ "qbl2", then topic, partition, offset, publisher, sequence, time and digest, big-endian."""
    leaf = b"".join(
        [
            b"qbl2",
            topic_number(proof["topic"]).to_bytes(4, "big"),
            proof["partition"].to_bytes(2, "big"),
            proof["offset"].to_bytes(8, "big"),
            proof["session"].to_bytes(4, "big") + proof["producer"].to_bytes(4, "big"),
            proof["sequence"].to_bytes(8, "big"),
            proof["time_us"].to_bytes(8, "big", signed=True),
            content(proof),
        ]
    )
    return hashlib.sha256(b"\x00" + leaf).digest()


def topic_number(name: str) -> int:
    return int.from_bytes(blake3(name.encode()).digest(4), "little")


def content(proof: dict[str, Any]) -> bytes:
    """A hash of the header and a hash of what follows: of the signature block, or of the body."""
    if "seal" in proof:
        seal = base64.b64decode(proof["seal"])
        header = seal[:16]
        assert header[1] == 1, "a seal whose header says that nobody signed"
        context = "quorate 2026-11-19 the signature block of a batch"
        follows = blake3(seal[16:], derive_key_context=context).digest()
    else:
        header = base64.b64decode(proof["header"])
        assert header[1] == 0, "a signed batch without its seal"
        follows = blake3(base64.b64decode(proof["body"])).digest()
    check_header(header)
    context = "quorate 2026-11-19 the digest of a batch"
    return blake3(header + follows, derive_key_context=context).digest()


def check_header(header: bytes) -> None:
    """u8 version, u8 kind, u16 zero, u32 events, u32 headers, u32 plain bytes."""
    assert len(header) == 16
    assert header[0] == 2
    assert header[2:4] == b"\0\0"
    events, size = (int.from_bytes(header[at : at + 4], "little") for at in (4, 12))
    assert 1 <= events <= 1_000_000
    assert 4 * events <= size <= 32 * 1024 * 1024


def check_producer(proof: dict[str, Any]) -> None:
    """The key in the seal signed the SID of this batch, and the body is the one that it names."""
    seal = base64.b64decode(proof["seal"])
    assert len(seal) == 288
    header, time_us, digest, root = seal[:16], seal[16:24], seal[24:56], seal[56:88]
    size, leaf, zeros, path = seal[88], seal[89], seal[90:96], seal[96:192]
    key, signature = seal[192:224], seal[224:]
    assert not any(zeros)
    sid = b"quorate sid v2\n"
    for name in (proof["cluster"], proof["topic"]):
        sid += len(name.encode()).to_bytes(2, "little") + name.encode()
    for field, width in (("partition", 2), ("producer", 4), ("session", 4), ("sequence", 8)):
        sid += proof[field].to_bytes(width, "little")
    sid += header + time_us + digest + root + key
    signed = b"quorate sheaf v1\n" + bytes([size]) + sheaf_root(sid, size, leaf, path)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except InvalidSignature:
        raise AssertionError("the producer did not sign this") from None
    if "body" in proof:
        assert blake3(base64.b64decode(proof["body"])).digest() == digest


def sheaf_root(sid: bytes, size: int, leaf: int, path: bytes) -> bytes:
    """Over the SIDs that were signed together, of which there are eight at most."""
    hashes = [path[at : at + 32] for at in range(0, 96, 32)]
    while hashes and not any(hashes[-1]):
        hashes.pop()
    assert leaf < size <= 8
    return root_over(hashlib.sha256(b"\x00" + sid).digest(), leaf, size, hashes)


def check_event(proof: dict[str, Any]) -> None:
    """The event is in the tree whose root the seal names."""
    seal, event = base64.b64decode(proof["seal"]), proof["event"]
    count, root = int.from_bytes(seal[4:8], "little"), seal[56:88]
    key = event.get("key")
    parts = [base64.b64decode(key or ""), base64.b64decode(event["value"])]
    for name, value in event["headers"]:
        parts += [name.encode(), base64.b64decode(value)]
    flags = event["urgent"] + 2 * (key is not None)
    written = event["timestamp_us"].to_bytes(8, "little", signed=True) + bytes([flags])
    written += b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    leaf = hashlib.sha256(b"\x00" + base64.b64decode(event["salt"]) + written).digest()
    path = [base64.b64decode(each) for each in event["path"]]
    assert root_over(leaf, event["index"], count, path) == root, "not an event of this batch"
