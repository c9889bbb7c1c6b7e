"""`quorate verify`: two files in, words out, and no cluster anywhere."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import quorate
from order_log import PLAIN, SALTED, OrderLog, event

PROOFS = Path(__file__).parent.parent / "vectors" / "proofs"
KEYS = PROOFS / "cluster.toml"
EXPECTED = json.loads((PROOFS / "expected.json").read_text())

EVENT_IN_WORDS = """\
bob published 1 event of a batch of 3 on topic votes of cluster bank.
  identity  {identity}
  signed    2023-11-14 22:13:19.999000+00:00 by the producer's clock, with the key that is pinned \
for it
            {key}
  ordered   2023-11-14 22:13:20.002000+00:00 as batch 1 of session 77 of client 1001
  position  offset 1 of partition 0; leaf 2 of an order log of 15
  vouched   by r0 at 2023-11-14 22:14:20+00:00, r1 at 2023-11-14 22:14:20+00:00, r2 at 2023-11-14 \
22:14:20+00:00
  event     1: no  (of 2023-11-14 22:13:20.000000+00:00)
"""


def verified(proof: Path, *options: str) -> str:
    done = quorate("verify", proof, "--cluster-key", KEYS, *options)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def of_a_log(tmp_path: Path, log: OrderLog) -> Path:
    (tmp_path / "proof.json").write_bytes(log.proof(0).render())
    return tmp_path / "proof.json"


def test_a_proof_of_one_event_is_told_in_words() -> None:
    key = next(each for each in OrderLog().cluster.clients if each.name == "bob").sign_key

    assert verified(PROOFS / "good-event.json") == EVENT_IN_WORDS.format(
        key=key.hex(), identity=OrderLog().cluster.identity.hex()
    )


@pytest.mark.parametrize("name", EXPECTED["good"])
def test_every_good_vector_is_told_with_its_remarks(name: str) -> None:
    said = verified(PROOFS / f"good-{name}.json")

    for remark in EXPECTED["good"][name]["remarks"]:
        assert f"  note      {remark}\n" in said


@pytest.mark.parametrize("name", EXPECTED["bad"])
def test_a_bad_vector_is_refused_with_its_sentence_and_exit_code_1(name: str) -> None:
    done = quorate("verify", PROOFS / f"bad-{name}.json", "--cluster-key", KEYS)

    assert (done.code, done.err) == (1, "")
    assert done.out == f"This proves nothing: {EXPECTED['bad'][name]}.\n"


def test_what_is_told_as_json_says_as_much() -> None:
    told = json.loads(verified(PROOFS / "good-event-alone-in-its-batch.json", "--json"))

    assert (told["holds"], told["is_key_pinned"], told["remarks"]) == (True, True, [])
    assert told["shown"] == [
        {
            "offset": 3,
            "key": "k",
            "value": "aye",
            "headers": [["seat", "12"], ["row", ""]],
            "timestamp_us": 1_700_000_000_000_000,
            "urgent": True,
        }
    ]
    assert [each["name"] for each in told["vouchers"]] == ["r0", "r1", "r2"]


def test_what_a_publisher_wrote_does_not_command_a_terminal(tmp_path: Path) -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"\x1b[2J\nforged", b"\xff\x00"), event(b"x" * 1000)])

    said = verified(of_a_log(tmp_path, log))

    assert "\x1b" not in said
    assert r"event     0: \x1b[2J\nforged  (key 0xff00;" in said
    assert "(1,000 bytes, whole with --json)" in said


def test_of_a_large_batch_a_screen_full_is_shown(tmp_path: Path) -> None:
    log = OrderLog()
    log.publish(PLAIN, [event(b"number %d" % at) for at in range(1000)])
    proof = of_a_log(tmp_path, log)

    assert "number 19  (" in verified(proof)
    assert "number 20  (" not in verified(proof)
    assert "and 980 more, which --json has" in verified(proof)
    assert len(json.loads(verified(proof, "--json"))["shown"]) == 1000


def test_the_directory_of_a_cluster_file_does_as_well_and_a_replica_does_not() -> None:
    done = quorate("verify", PROOFS / "good-batch.json", "--cluster-key", PROOFS)
    no_file = quorate("verify", PROOFS / "good-batch.json", "--cluster-key", PROOFS / "r0")

    assert (done.code, no_file.code) == (0, 2)


def test_a_single_event_is_no_event_of_a_batch_of_one(tmp_path: Path) -> None:
    log = OrderLog()
    log.publish(SALTED, [event(b"alone")])
    (tmp_path / "proof.json").write_bytes(log.proof(0, event=0).render())

    assert verified(tmp_path / "proof.json").startswith("alice published 1 event on topic votes")


def test_verifying_imports_nothing_that_talks_to_a_cluster() -> None:
    script = (
        "import sys; sys.argv = ['quorate', 'verify', *sys.argv[1:]]\n"
        "from quorate.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n    print(sorted(name for name in sys.modules))"
    )
    proof = str(PROOFS / "good-batch.json")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, proof, "--cluster-key", str(KEYS)],
        capture_output=True,
        text=True,
        check=True,
    )
    words, imported = done.stdout.strip().rsplit("\n", 1)

    assert words.startswith("alice published 2 events")
    for heavy in ("'asyncio.", "'pyarrow", "'rich.", "'quorate.client", "'quorate.protocol"):
        assert heavy not in imported, heavy
