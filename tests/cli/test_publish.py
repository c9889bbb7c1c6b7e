"""`quorate publish` and `quorate subscribe`: from the command line through real replicas."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from clusters import (
    Outcome,
    TestCluster,
    line_with,
    quorate,
    quorate_process,
    running_cluster,
)

pytestmark = pytest.mark.xdist_group("processes")

TOPICS: dict[str, dict[str, object]] = {
    "news": {"protection": "byzantine", "broadcast": "authenticated"},
    "private": {"protection": "crash", "publish": ["bob"], "subscribe": ["bob"]},
    "ledger": {"order": "total"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[TestCluster]:
    with running_cluster(topics=TOPICS) as made:
        yield made


def publish(cluster: TestCluster, *arguments: object, stdin: bytes | None = b"") -> Outcome:
    outcome = quorate("publish", *arguments, "--directory", cluster.directory, stdin=stdin)
    assert outcome.code == 0, outcome.err
    return outcome


def heard(process: Popen[str]) -> list[dict[str, Any]]:
    """Everything that `subscribe --json` prints until it ends."""
    assert process.stdout is not None
    rows = [json.loads(line) for line in process.stdout]
    assert process.wait() == 0
    return rows


def test_a_receipt_says_what_is_guaranteed_and_by_whom(cluster: TestCluster) -> None:
    words = publish(cluster, "news", "one", "two").out

    assert words.startswith("news: 2 events from alice, batch 1, taken by r")
    assert words.endswith(": at least f + 1 correct replicas have it and will forward it\n")


def test_a_receipt_for_machines_is_a_line_of_json(cluster: TestCluster) -> None:
    receipt = json.loads(publish(cluster, "news", "one", "--json").out)

    assert (receipt["topic"], receipt["sequence"], receipt["events"]) == ("news", 1, 1)
    assert len(receipt["replicas"]) >= 3


def test_quiet_prints_nothing(cluster: TestCluster) -> None:
    outcome = publish(cluster, "news", "one", "--quiet")

    assert (outcome.out, outcome.err) == ("", "")


def test_urgent_events_have_a_receipt_each(cluster: TestCluster) -> None:
    words = publish(cluster, "news", "one", "two", "--urgent").out

    assert [row.split(",")[0] for row in words.splitlines()] == ["news: 1 event from alice"] * 2


@pytest.mark.parametrize("stdin", [b"", None], ids=["empty", "closed"])
def test_an_empty_input_publishes_nothing_and_says_so(
    cluster: TestCluster, stdin: bytes | None
) -> None:
    outcome = publish(cluster, "news", stdin=stdin)

    assert outcome.out == ""
    assert "nothing was published" in outcome.err


def test_with_a_closed_standard_output_events_are_published_all_the_same(
    cluster: TestCluster,
) -> None:
    """A socket that took the number of a closed stream ended the process."""
    command = f'exec "$0" -P -m quorate publish news one -d {cluster.directory} >&-'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_published_is_printed_with_all_that_came_with_it(
    cluster: TestCluster, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(b"\xff\x00")
    listen = ("subscribe", "news", "--as", "bob", "--count", 5, "--json", "-d", cluster.directory)
    with quorate_process(*listen) as process:
        line_with(process.stderr, "bob listens to news")
        publish(cluster, "news", "disk full", "--key", "host-7", "--header", "level=high")
        publish(cluster, "news", stdin=b"one\n\nthree")
        publish(cluster, "news", "--file", tmp_path / "blob", "--urgent")

        rows = heard(process)

    # Each command is a session of its own, and between sessions no order is promised.
    by_value = {str(row["value"]): row for row in rows}
    assert set(by_value) == {"disk full", "one", "", "three", "{'hex': 'ff00'}"}
    assert by_value["disk full"]["key"] == "host-7"
    assert by_value["disk full"]["headers"] == [["level", "high"]]
    assert by_value["one"]["sequence"] == by_value[""]["sequence"]
    assert [by_value["one"]["index"], by_value[""]["index"]] == [0, 1]
    assert [value for value, row in by_value.items() if row["urgent"]] == ["{'hex': 'ff00'}"]
    for row in rows:
        assert (row["topic"], row["publisher"]) == ("news", "alice")
        assert len(row["vouchers"]) >= 3


def test_a_subscriber_names_the_replica_that_it_catches_at_a_lie(cluster: TestCluster) -> None:
    lie = ("lie", "--fields", "content", "-d", cluster.directory)
    assert quorate("replica", "r1", *lie).code == 0
    lines = b"\n".join(b"line %d" % number for number in range(50))
    listen = ("subscribe", "news", "--as", "bob", "--count", 50, "-d", cluster.directory)
    with quorate_process(*listen) as process:
        line_with(process.stderr, "bob listens to news")
        publish(cluster, "news", "--urgent", stdin=lines)

        assert "line 49" in line_with(process.stdout, "line 49")
        assert "batch" in line_with(process.stderr, "Noticed r1: ")
    assert quorate("replica", "r1", "behave", "-d", cluster.directory).code == 0


def test_only_what_passes_the_filters_is_printed(cluster: TestCluster) -> None:
    filters = ("--key-prefix", "host-", "--header", "level=high")
    with quorate_process(
        "subscribe", "news", *filters, "--count", 1, "--json", "-d", cluster.directory
    ) as process:
        line_with(process.stderr, "listens to news")
        publish(cluster, "news", "a", "--key", "host-1")
        publish(cluster, "news", "b", "--key", "router-1", "--header", "level=high")
        publish(cluster, "news", "c", "--key", "host-1", "--header", "level=high")

        rows = heard(process)

    assert [row["value"] for row in rows] == ["c"]


def test_a_publisher_cannot_reach_the_terminal_of_a_subscriber(cluster: TestCluster) -> None:
    with quorate_process("subscribe", "news", "--count", 2, "-d", cluster.directory) as process:
        line_with(process.stderr, "listens to news")
        publish(cluster, "news", "\x1b[2J\nnews alice#9.9  forged", "grün", "--key", "k\x07")

        assert process.stdout is not None
        rows = process.stdout.read().splitlines()

    assert len(rows) == 2
    assert rows[0].startswith(r"news alice#1.0  \x1b[2J\nnews alice#9.9  forged  (key k\x07; ")
    assert rows[1].startswith("news alice#1.1  grün  (key k")
    assert "vouched by r" in rows[1]


def test_fewer_events_than_asked_for_end_in_exit_code_1(cluster: TestCluster) -> None:
    outcome = quorate("subscribe", "news", "--count", 1, "--seconds", 0.01, "-d", cluster.directory)

    assert (outcome.code, outcome.out) == (1, "")


def test_whoever_asks_a_live_topic_for_its_beginning_is_told_that_nothing_is_kept(
    cluster: TestCluster,
) -> None:
    listen = ("subscribe", "news", "--seconds", 0.01, "-d", cluster.directory)
    sentence = "--from is for log topics: of news nothing is kept"

    assert sentence in quorate(*listen, "--from", "begin").err
    assert sentence not in quorate(*listen).err


def test_whoever_asks_for_an_offset_that_is_not_there_yet_is_told_and_waits_for_it(
    cluster: TestCluster,
) -> None:
    publish(cluster, "ledger", "zero")
    listen = ("subscribe", "ledger", "--from", 2, "--count", 1, "-d", cluster.directory)
    with quorate_process(*listen, "--json") as process:
        told = line_with(process.stderr, "ends at offset")
        publish(cluster, "ledger", "one")
        publish(cluster, "ledger", "two")

        rows = heard(process)

    assert told == "partition 0 of 'ledger' ends at offset 1; waiting for offset 2\n"
    assert [(row["offset"], row["value"]) for row in rows] == [(2, "two")]


def test_whoever_is_not_named_is_a_client_that_the_topic_lets_in(cluster: TestCluster) -> None:
    assert "from bob" in publish(cluster, "private", "psst").out
    outcome = quorate("subscribe", "private", "--seconds", 0.01, "-d", cluster.directory)
    assert "bob listens to private" in outcome.err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("publish", "nosuch", "x"), "no topic 'nosuch'; it has news, private"),
        (("publish", "news", "x", "--as", "carol"), "no member named 'carol'; it has r0, r1"),
        (("publish", "news", "x", "--as", "r0"), "r0 is a replica"),
        (("publish", "news", "x", "--header", "level"), "does not have the form NAME=VALUE"),
        (("publish", "news", "x", "--file", "y"), "give either values or --file, not both"),
        (("publish", "news", "--file", "/nonexistent"), "/nonexistent cannot be read: No such"),
        (("publish", "news", "--file", "/"), "cannot be read: Is a directory"),
        (("publish", "private", "x", "--as", "alice"), "alice may not publish on 'private'; bob"),
        (("subscribe", "nosuch"), "no topic 'nosuch'; it has news, private"),
        (("subscribe", "news", "--count", 0), "--count is 0, but it must be above 0"),
        (("subscribe", "news", "--seconds", "nan"), "--seconds is nan, but it must be above 0"),
        (("subscribe", "private", "--as", "alice"), "alice may not subscribe to 'private'; bob"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(
    cluster: TestCluster, command: tuple[object, ...], sentence: str
) -> None:
    outcome = quorate(*command, "--directory", cluster.directory)

    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_line_that_does_not_end_is_refused_before_it_fills_the_memory(
    cluster: TestCluster,
) -> None:
    outcome = quorate("publish", "news", "-d", cluster.directory, stdin=b"x" * 5_000_000)

    assert outcome.code == 2
    assert "a line of the input is longer than 4194304 bytes; shorten it, or" in outcome.err
    assert "--file, which takes a little less than 8388608" in outcome.err
