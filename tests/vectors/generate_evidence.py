"""Evidence that holds, and evidence that is wrong in one way each: writes `evidence/` beside this.

    PYTHONPATH=tests/support .venv/bin/python tests/vectors/generate_evidence.py

All keys follow from names, so that the same files come out every time; a test holds them against
those that are checked in. They are verified with the keys in `proofs/cluster.toml`. `expected.json`
says what each good one proves, and with which sentence each bad one is refused.
"""

import base64
import json
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from order_log import PLAIN, SALTED, OrderLog, Published, cosignature, event, identity
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import HEADER_BYTES, header_of
from quorate.core.ids import member_of, session_of
from quorate.crypto.checkpoint import Checkpoint, Head
from quorate.crypto.digests import batch_digest, link
from quorate.crypto.evidence import (
    Evidence,
    FalseReceipt,
    Keys,
    Malformed,
    TwoSeals,
    heads_in_conflict,
    parse,
    render,
    verify_evidence,
)
from quorate.crypto.receipts import Receipt, Refusal
from quorate.crypto.sids import Place, Seal

DIRECTORY = Path(__file__).parent / "evidence"
EXPECTED_FILE = "expected.json"
LOG = OrderLog()
KEYS = Keys.of(LOG.cluster)
STORE = LOG.cluster.replicas[2]


def made() -> dict[str, bytes]:
    """Every file by its name."""
    good = {name: render(evidence) for name, evidence in proving().items()}
    bad = {**changed(), **texts()}
    expected = {
        "good": {
            name: msgspec.to_builtins(verify_evidence(parse(text), KEYS))
            for name, text in good.items()
        },
        "bad": {name: refusal(text) for name, text in bad.items()},
    }
    return {
        EXPECTED_FILE: (json.dumps(expected, indent=1) + "\n").encode(),
        **{f"good-{name}.json": text.encode() for name, text in good.items()},
        **{f"bad-{name}.json": text.encode() for name, text in bad.items()},
    }


def refusal(text: str) -> str:
    """The sentence with which this is refused."""
    try:
        verify_evidence(parse(text), KEYS)
    except RemoteProtocolError as error:
        return str(error)
    raise AssertionError("bad evidence that proves something")


def proving() -> dict[str, Evidence]:
    return {
        "two-seals": two_seals(b"10 to bob", b"10 to carol"),
        "two-seals-with-two-headers": two_seals(b"10 to bob", b"10 to bob", count=2),
        "malformed-count": malformed(PLAIN, count=2),
        "malformed-count-with-event-proofs": malformed(SALTED, count=2),
        "malformed-tree": malformed(SALTED, root=b"r" * 32),
        "two-heads": two_heads(),
        "false-receipt": false_receipt(),
    }


def published(topic: str, value: bytes = b"10 to bob", **how: Any) -> tuple[Place, Published]:
    log = OrderLog()
    found = log.publish(topic, [event(value)], **how)
    producer, session = member_of(found.publisher), session_of(found.publisher)
    return Place(log.cluster.full_name, topic, 0, producer, session), found


def two_seals(one: bytes, other: bytes, **how: Any) -> TwoSeals:
    place, first = published(PLAIN, one)
    _, second = published(PLAIN, other, **how)
    seals = [Seal.decode(each.payload) for each in (first, second)]
    return TwoSeals.of(place, first.sequence, *seals)


def malformed(topic: str, **how: Any) -> Malformed:
    place, found = published(topic, **how)
    evidence = Malformed.of(place, found.sequence, found.payload)
    assert evidence is not None
    return evidence


def two_heads() -> Evidence:
    heads = [Head(LOG.keys.origin, 12, root * 32, ()) for root in (b"1", b"2")]
    one, other = (Checkpoint(head, (cosignature(head, "r2"),)) for head in heads)
    (evidence,) = heads_in_conflict(LOG.cluster.full_name, one, other, {"r2": STORE.number})
    return evidence


def false_receipt(**refused: int) -> FalseReceipt:
    """The store receipts batches 1 to 3 and refuses batch 2."""
    place, _ = published(PLAIN)
    contents = [batch_digest(b"batch %d" % number) for number in range(3)]
    receipt = Receipt(place, 1, 3, reduce(link, contents, bytes(32)))
    said = {"offset": 40, "start": 30, "time_us": 99, **refused}
    refusal = Refusal(place, 2, contents[1], **said)
    sign = identity("r2").sign
    return FalseReceipt.of(
        STORE.number, receipt, sign(receipt.encode()), refusal, sign(refusal.encode()),
        link(bytes(32), contents[0]), (contents[2],),
    )  # fmt: skip


def changed() -> dict[str, str]:
    """In good form, and nothing that anybody signed, or no contradiction."""
    seals, lie, heads = two_seals(b"one", b"other"), malformed(PLAIN, count=2), two_heads()
    receipt, header = false_receipt(), header_of(lie.seal)
    headers = {
        "kind": header._replace(kind=0),
        "count": header._replace(events=3, plain_bytes=100),
        "size": header._replace(plain_bytes=100),
        "version": header._replace(version=1),
    }
    other = published(PLAIN, b"other")[1].payload
    wrong: dict[str, Any] = {
        **{
            f"malformed-header-{name}": _with(lie, seal=each.encode() + lie.seal[HEADER_BYTES:])
            for name, each in headers.items()
        },
        "malformed-not-at-all": malformed(PLAIN),
        "malformed-not-at-all-with-event-proofs": malformed(SALTED),
        "malformed-another-body": _with(lie, body=other[len(lie.seal) :]),
        "malformed-another-number": _with(lie, sequence=2),
        "malformed-with-a-strangers-key": malformed(PLAIN, count=2, generation=9),
        "two-seals-of-one-batch": _with(seals, other=seals.one),
        "two-seals-in-another-order": _with(seals, one=seals.other, other=seals.one),
        "two-seals-of-another-topic": _with(seals, topic=SALTED),
        "two-seals-of-a-basic-batch": _with(
            seals, one=header._replace(kind=0).encode() + seals.one[HEADER_BYTES:]
        ),
        "two-heads-of-another-size": _with(heads, size=13),
        "false-receipt-of-what-retention-took": false_receipt(start=41),
        "false-receipt-at-another-offset": _with(receipt, offset=41),
        "false-receipt-of-another-batch": _with(receipt, sequence=3, behind=()),
        "of-another-cluster": _with(lie, cluster="other-bank"),
    }
    return {name: render(evidence) for name, evidence in wrong.items()}


def texts() -> dict[str, str]:
    good = render(two_seals(b"one", b"other"))
    return {
        "version-1": good.replace("quorate evidence v2", "evidence"),
        "version-3": good.replace("evidence v2", "evidence v3"),
        "false-seal-of-version-1": good.replace(
            '"quorate evidence v2": "two-seals"', '"evidence": "false-seal"'
        ),
        "unknown-kind": good.replace("two-seals", "two-souls"),
        "no-kind": good.replace('  "quorate evidence v2": "two-seals",\n', ""),
        "seal-of-version-1": good.replace(
            json.loads(good)["one"], base64.b64encode(bytes(274)).decode()
        ),
        "one-line": json.dumps(json.loads(good)),
        "empty": "",
    }


def _with(thing: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(thing, **changes)


def main() -> None:
    files = made()
    DIRECTORY.mkdir(exist_ok=True)
    for path in DIRECTORY.iterdir():
        path.unlink()
    for name, data in files.items():
        (DIRECTORY / name).write_bytes(data)


if __name__ == "__main__":
    main()
