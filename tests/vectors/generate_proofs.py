"""Proofs that hold, and proofs that are wrong in one way each: writes `proofs/` beside this file.

    PYTHONPATH=tests/support .venv/bin/python tests/vectors/generate_proofs.py

All keys follow from names, so that the same files come out every time; a test holds them against
those that are checked in. `cluster.toml` has the keys to verify them with. `expected.json` says
what each good one proves, and with which sentence each bad one is refused.
"""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from order_log import PLAIN, REPLICAS, SALTED, OrderLog, cosignature, event, identity
from quorate.core.header import HEADER_BYTES, SEAL_BYTES, SIGNED, Header, header_of
from quorate.crypto.checkpoint import Cosigner, Head, head_of, render
from quorate.crypto.proofs import Proof, ProofError, Verdict, verify_bytes

DIRECTORY = Path(__file__).parent / "proofs"
CLUSTER_FILE = "cluster.toml"
EXPECTED_FILE = "expected.json"


def made() -> dict[str, bytes]:
    """Every file by its name."""
    log = a_log()
    good = {name: proof.render() for name, proof in proofs(log).items()}
    bad = {**changed_claims(log), **changed_checkpoints(log), **changed_texts(log)}
    expected = {
        "good": {name: _told(verify_bytes(data, log.keys)) for name, data in good.items()},
        "bad": {name: refusal(data, log) for name, data in bad.items()},
    }
    return {
        CLUSTER_FILE: log.cluster.render().encode(),
        EXPECTED_FILE: (json.dumps(expected, indent=1) + "\n").encode(),
        **{f"good-{name}.json": data for name, data in good.items()},
        **{f"bad-{name}.json": data for name, data in bad.items()},
    }


def refusal(data: bytes, log: OrderLog) -> str:
    """The sentence with which this is refused."""
    try:
        verify_bytes(data, log.keys)
    except ProofError as error:
        return str(error)
    raise AssertionError("a bad proof that verifies")


def a_log() -> OrderLog:
    """Batches of clients who are there, who were, and who got another key since; some basic."""
    log = OrderLog()
    log.publish(PLAIN, [event(b"first")])
    log.publish(PLAIN, [event(b"10 to bob", b"alice"), event(b"20 to carol", b"alice")])
    log.publish(SALTED, [event(b"yes"), event(b"no"), event(b"abstain")], by="bob")
    log.publish(SALTED, [event(b"aye", b"k", urgent=True, seat=b"12", row=b"")])
    log.publish(PLAIN, [event(b"by a client no more")], by="carol", partition=1)
    log.publish(PLAIN, [event(b"with a key of before")], by="bob", generation=1)
    log.publish(SALTED, [event(b"many %d" % number) for number in range(9)])
    log.publish(PLAIN, [event(b"by a client who came later")], by="dan")
    log.publish(PLAIN, [event(b"signed with six others")], sheaf=7)
    log.publish(PLAIN, [event(b"not signed"), event(b"nor this", b"k", urgent=True)], signed=False)
    log.publish(SALTED, [event(b"a hint")], by="bob", signed=False)
    log.publish(PLAIN, [event(b"not signed by a stranger")], by="dan", signed=False)
    log.publish(PLAIN, [event(b"one"), event(b"two"), event(b"three")], count=2)
    log.publish(PLAIN, [event(b"one that counts as three")], count=3, by="bob", signed=False)
    log.publish(PLAIN, [event(b"behind what takes three offsets and has no events")])
    return log


def proofs(log: OrderLog) -> dict[str, Proof]:
    alone = OrderLog()
    alone.publish(PLAIN, [event(b"the only one")])
    wrong_tree = OrderLog()
    wrong_tree.publish(SALTED, [event(b"one"), event(b"two")], root=b"r" * 32)
    extended = log.checkpoint(REPLICAS[1:], extensions=("state of slot 4096",))
    return {
        "batch": log.proof(1),
        "first-batch": log.proof(0),
        "batch-of-another-partition-by-a-former-client": log.proof(4),
        "batch-with-another-key": log.proof(5),
        "batch-by-an-unknown-client": log.proof(7),
        "batch-signed-with-others": log.proof(8),
        "batch-of-the-shortest-log": alone.proof(0),
        "batch-under-a-checkpoint-with-an-extension": log.proof(6, checkpoint=extended),
        "batch-with-the-salt": log.proof(2),
        "batch-with-a-wrong-tree": wrong_tree.proof(0),
        "batch-that-is-malformed": log.proof(12),
        "batch-behind-those": log.proof(14),
        "basic-batch": log.proof(9),
        "basic-batch-of-a-topic-with-event-proofs": log.proof(10),
        "basic-batch-by-an-unknown-client": log.proof(11),
        "basic-batch-that-is-malformed": log.proof(13),
        "event": log.proof(2, event=1),
        "event-alone-in-its-batch": log.proof(3, event=0),
        "event-the-last-of-nine": log.proof(6, event=8),
    }


# What is said


def changed_claims(log: OrderLog) -> dict[str, bytes]:
    """Proofs in good form that say what was not so."""
    batch: Any = log.proof(1)
    basic: Any = log.proof(9)
    one = log.proof(2, event=1)
    shown = one.event
    assert shown is not None
    other = OrderLog("other-bank")
    other.publish(PLAIN, [event(b"elsewhere")])
    # The same name, keys and topics, founded once more.
    again = OrderLog(nonce=b"n" * 16)
    again.publish(PLAIN, [event(b"in another life")])
    forger = OrderLog()
    forged = forger.publish(PLAIN, [event(b"999 to mallory")], generation=9)
    signed_elsewhere = OrderLog()
    signed_elsewhere.published += log.published[:9]
    seal = signed_elsewhere.publish(
        PLAIN, [event(b"not signed"), event(b"nor this", b"k", urgent=True)]
    ).payload[:SEAL_BYTES]
    header, signed_header = header_of(basic.header), header_of(batch.seal)
    stripped = signed_header._replace(kind=0).encode()
    no_batch = OrderLog()
    first = no_batch.publish(PLAIN, [event(b"x")])
    return {
        name: proof.render()
        for name, proof in {
            "of-another-cluster": other.proof(0),
            "of-another-founding": again.proof(0),
            "of-another-founding-in-the-name-of-this": _with(
                again.proof(0), cluster=log.cluster.full_name
            ),
            "without-the-identity": _with(batch, cluster="bank"),
            "in-the-name-of-another-cluster": _with(batch, cluster="other-bank"),
            "topic": _with(batch, topic="payment"),
            "partition": _with(batch, partition=1),
            "offset": _with(batch, offset=batch.offset + 1),
            "producer": _with(batch, producer=1001),
            "session": _with(batch, session=batch.session + 1),
            "sequence": _with(batch, sequence=batch.sequence + 1),
            "time": _with(batch, time_us=batch.time_us + 1),
            "seal-of-another-sheaf": _with(
                log.proof(8), seal=_with_path_of(log.proof(8).seal or b"", batch.seal)
            ),
            "seal-of-another-batch": _with(batch, seal=log.proof(0).seal),
            "seal-that-is-none": _with(batch, seal=b"qsd1" + batch.seal[4:]),
            **{
                f"seal-{name}": _with(
                    batch, seal=changed.encode() + batch.seal[HEADER_BYTES:]
                )
                for name, changed in _changed(signed_header)
            },
            "signed-batch-as-a-basic-one": _with(batch, seal=None, header=stripped),
            "signed-batch-without-its-seal": _with(
                batch, seal=None, header=batch.seal[:HEADER_BYTES]
            ),
            "signed-batch-whose-body-begins-with-its-seal": _with(
                batch, seal=None, header=stripped, body=batch.seal[HEADER_BYTES:] + batch.body
            ),
            **{
                f"basic-{name}": _with(basic, header=changed.encode())
                for name, changed in _changed(header)
            },
            "basic-as-signed": _with(basic, header=None, seal=seal),
            "basic-with-the-seal-of-another-batch": _with(basic, header=None, seal=batch.seal),
            "basic-body": _with(basic, body=basic.body[:-1] + b"?"),
            "basic-body-cut": _with(basic, body=basic.body[:-1]),
            "basic-body-longer": _with(basic, body=basic.body + b"\0"),
            "basic-body-of-another-batch": _with(basic, body=log.proof(10).body),
            "basic-topic": _with(basic, topic=SALTED),
            "basic-partition": _with(basic, partition=1),
            "basic-offset": _with(basic, offset=basic.offset + 1),
            "basic-producer": _with(basic, producer=basic.producer + 1),
            "basic-session": _with(basic, session=basic.session + 1),
            "basic-sequence": _with(basic, sequence=basic.sequence + 1),
            "basic-time": _with(basic, time_us=basic.time_us + 1),
            "basic-leaf": _with(basic, leaf=basic.leaf - 1),
            "offset-inside-the-batch-before": _with(log.proof(14), offset=log.proof(14).offset - 1),
            "seal-by-a-forger": _with(
                batch, seal=forged.payload[:SEAL_BYTES], body=forged.payload[SEAL_BYTES:],
                sequence=forged.sequence,
            ),
            "body-of-another-batch": _with(batch, body=log.proof(0).body),
            "body-cut": _with(batch, body=(batch.body or b"")[:-1]),
            "body-empty": _with(no_batch.proof(0), body=b"", seal=first.payload[:SEAL_BYTES]),
            "event-of-a-batch-without-a-tree": _with(batch, body=None, event=shown),
            "event-value": _with(one, event=_with(shown, value=b"yes")),
            "event-key": _with(one, event=_with(shown, key=b"")),
            "event-header": _with(one, event=_with(shown, headers=[("a", b"b")])),
            "event-time": _with(one, event=_with(shown, timestamp_us=0)),
            "event-urgent": _with(one, event=_with(shown, urgent=True)),
            "event-salt": _with(one, event=_with(shown, salt=bytes(32))),
            "event-index": _with(one, event=_with(shown, index=0)),
            "event-index-beyond-the-batch": _with(one, event=_with(shown, index=3)),
            "event-path-cut": _with(one, event=_with(shown, path=shown.path[:-1])),
            "event-path-longer": _with(one, event=_with(shown, path=[*shown.path, bytes(32)])),
            "leaf": _with(batch, leaf=batch.leaf + 1),
            "leaf-beyond-the-tree": _with(batch, leaf=batch.tree_size),
            "tree-size": _with(batch, tree_size=batch.tree_size - 1),
            "path-cut": _with(batch, path=batch.path[:-1]),
            "path-empty": _with(batch, path=[]),
            "path-longer": _with(batch, path=[*batch.path, bytes(32)]),
            "path-in-another-order": _with(batch, path=batch.path[::-1]),
            "position-of-another-batch": _with(batch, leaf=0, path=log.proof(0).path),
        }.items()
    }  # fmt: skip


def _changed(header: Header) -> list[tuple[str, Header]]:
    """Headers that differ in one field each, and some that no batch can have."""
    return [
        ("version", header._replace(version=3)),
        ("kind", header._replace(kind=SIGNED - header.kind)),
        ("kind-that-nobody-knows", header._replace(kind=2)),
        ("number-where-zero-is-due", header._replace(zero=1)),
        ("count", header._replace(events=header.events + 1)),
        ("count-of-zero", header._replace(events=0)),
        ("count-beyond-its-bound", header._replace(events=1_000_001, plain_bytes=2**25)),
        ("count-of-headers", header._replace(headers=1)),
        ("size", header._replace(plain_bytes=header.plain_bytes + 1)),
        ("size-too-small-for-its-count", header._replace(plain_bytes=4 * header.events - 1)),
        ("size-beyond-its-bound", header._replace(plain_bytes=2**25 + 1)),
    ]


def changed_checkpoints(log: OrderLog) -> dict[str, bytes]:
    batch = log.proof(1)
    three = batch.checkpoint
    head, lines = head_of(three), three.splitlines(keepends=True)[-3:]
    text = three.removesuffix("".join(lines))
    stranger = log.checkpoint(["mallory"]).splitlines(keepends=True)[-1]
    smaller = OrderLog()
    smaller.publish(PLAIN, [event(b"first")])
    later = Head(head.origin, head.size, bytes(32))
    cosigners = [Cosigner(name, identity(name).public.sign_key) for name in REPLICAS]
    notes = {
        "by-too-few": log.checkpoint(REPLICAS[:2]),
        "by-one": log.checkpoint(REPLICAS[3:]),
        "by-one-twice": text + lines[0] + lines[0] + lines[1],
        "by-one-twice-beside-enough": three + lines[2],
        "by-a-stranger": text + lines[0] + lines[1] + stranger,
        "by-a-stranger-beside-enough": three + stranger,
        "by-a-stranger-in-the-name-of-a-replica": text
        + "".join(lines[:2])
        + stranger.replace("mallory", "r2"),
        "by-all": log.checkpoint(REPLICAS),
        "in-another-order": text + "".join(lines[::-1]),
        "of-the-crash-group": log.checkpoint(origin=f"quorate/{log.cluster.full_name}/crash"),
        "of-another-cluster": log.checkpoint(origin="quorate/other-bank/byzantine"),
        "of-another-founding": OrderLog(nonce=b"n" * 16).checkpoint(),
        "of-a-shorter-log": smaller.checkpoint(),
        "with-another-root": text.replace(three.splitlines()[2], _base64(bytes(32)))
        + "".join(lines),
        "with-another-size": three.replace(f"\n{head.size}\n", f"\n{head.size + 1}\n", 1),
        "signed-with-another-root": render(
            later, [cosignature(later, name) for name in REPLICAS[:3]], cosigners
        ),
        "without-signatures": text,
        "empty": "",
    }
    return {
        f"checkpoint-{name}": _with(batch, checkpoint=note).render() for name, note in notes.items()
    }


# How it is written


def changed_texts(log: OrderLog) -> dict[str, bytes]:
    good = log.proof(1).render()
    one, basic = json.loads(log.proof(2, event=1).render()), log.proof(9).render()
    texts: dict[str, bytes | str] = {
        "empty": b"",
        "no-json": b"proof",
        "cut": good[:-3],
        "without-the-last-newline": good[:-1],
        "two-newlines": good + b"\n",
        "two-proofs": good + good,
        "space-at-the-end": good + b" ",
        "space-inside": good.replace(b'"offset": ', b'"offset":  '),
        "carriage-returns": good.replace(b"\n", b"\r\n"),
        "one-line": json.dumps(json.loads(good)),
        "not-ascii": good.replace(b"\\u2014", "\u2014".encode()),
        "not-utf-8": good.replace(b"payments", b"payment\xff"),
        "escaped-letter": good.replace(b"payments", b"payment\\u0073"),
        "no-object": b"[]\n",
        "nested": b"[" * 1000,
        "version-1": good.replace(b"proof v2", b"proof v1"),
        "version-3": basic.replace(b"proof v2", b"proof v3"),
        "version-with-a-zero": good.replace(b"proof v2", b"proof v02"),
        "other-format": good.replace(b"quorate proof v2", b"quorate table v2"),
        "unknown-key": good.replace(b' "offset"', b' "note": 1,\n "offset"'),
        "key-twice": good.replace(b' "offset"', b' "offset": 7,\n "offset"'),
        "key-missing": re.sub(rb' "offset": \d+,\n', b"", good),
        "keys-in-another-order": _swapped(good, b'"offset"', b'"partition"'),
        "number-as-text": _edited(good, lambda proof: proof.update(offset="1")),
        "number-as-fraction": good.replace(b'"offset": 1', b'"offset": 1.0'),
        "number-with-an-exponent": good.replace(b'"offset": 1', b'"offset": 1e0'),
        "number-with-a-zero": good.replace(b'"offset": 1', b'"offset": 01'),
        "number-negative": good.replace(b'"offset": 1', b'"offset": -1'),
        "number-too-large": good.replace(b'"offset": 1', b'"offset": 9223372036854775808'),
        "number-with-many-digits": good.replace(b'"offset": 1', b'"offset": 1' + b"0" * 5000),
        "partition-too-large": good.replace(b'"partition": 0', b'"partition": 65536'),
        "base64-not-canonical": _loosened(good),
        "base64-without-padding": re.sub(rb'=+"', b'"', good, count=1),
        "base64-with-a-space": re.sub(rb'"seal": "', b'"seal": " ', good),
        "seal-too-short": _edited(
            good, lambda proof: proof.update(seal=_base64(bytes(SEAL_BYTES - 1)))
        ),
        "hash-too-short": _edited(good, lambda proof: proof.update(path=[_base64(bytes(31))])),
        "path-too-long": _edited(good, lambda proof: proof.update(path=[_base64(bytes(32))] * 64)),
        "null": _edited(good, lambda proof: proof.update(event=None)),
        "body-and-event": _edited(good, lambda proof: proof.update(event=one["event"])),
        "neither-body-nor-event": _edited(good, lambda proof: proof.pop("body")),
        "seal-and-header": good.replace(
            b' "body"', b' "header": "' + _base64(bytes(16)).encode() + b'",\n "body"'
        ),
        "neither-seal-nor-header": re.sub(rb' "seal": ".*\n', b"", good),
        "header-too-short": _edited(basic, lambda proof: proof.update(header=_base64(bytes(15)))),
        "header-and-event": re.sub(
            rb' "seal": ".*\n', b' "header": "' + _base64(bytes(16)).encode() + b'",\n',
            log.proof(2, event=1).render(),
        ),
    }  # fmt: skip
    return {
        f"text-{name}": text.encode() if isinstance(text, str) else text
        for name, text in texts.items()
    }


def _edited(proof: bytes, change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(proof)
    change(content)
    return json.dumps(content, indent=1) + "\n"


def _swapped(data: bytes, *keys: bytes) -> bytes:
    lines = data.split(b"\n")
    one, two = (next(at for at, line in enumerate(lines) if key in line) for key in keys)
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


def _loosened(good: bytes) -> bytes:
    """The last character before the padding has bits that say nothing: here one of them is set."""
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    found = re.search(rb'([A-Za-z0-9+/])="', good)
    assert found is not None
    last = letters[letters.index(found[1]) + 1 :][:1]
    return good[: found.start()] + last + good[found.start() + 1 :]


def _with(thing: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(thing, **changes)


def _with_path_of(seal: bytes, other: bytes) -> bytes:
    """Size, leaf and path are those of another seal."""
    return seal[:88] + other[88:192] + seal[192:]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _told(verdict: Verdict) -> dict[str, object]:
    told: dict[str, object] = msgspec.to_builtins(verdict)
    return told


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for path in DIRECTORY.iterdir():
        path.unlink()
    for name, data in made().items():
        (DIRECTORY / name).write_bytes(data)


if __name__ == "__main__":
    main()
