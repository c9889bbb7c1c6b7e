"""`quorate demo`: what its books count, what its words say of that, and what its verdict is."""

from collections import Counter
from pathlib import Path

import pytest

from clusters import quorate
from quorate.cli.demo_books import Line, Order, Scene, Shown, verdict
from quorate.cli.demo_plot import Plan
from quorate.cli.demo_report import write_report
from quorate.cli.demo_words import sentences, weak_words
from quorate.core.errors import QuorateError
from quorate.pipeline.data.found import Found

PLAN = Plan(60.0, seed=7)
TOPICS = PLAN.contracts()
PROMISED = [name for name, contract in TOPICS.items() if contract.protection == "byzantine"]


def line(
    topic: str,
    published: Counter[bytes] | None = None,
    delivered: Counter[bytes] | None = None,
    archived: Counter[bytes] | None = None,
) -> Line:
    nothing: Counter[bytes] = Counter()
    return Line(topic, TOPICS[topic], published or nothing, delivered or nothing, archived)


def played() -> Scene:
    """A demo after which every promise was kept."""
    scanners = Found(("north", "east"), truth={"198.18.0.1": 10.0})
    silences = Found(("watch",), truth={"acme/web-0.acme": 20.0})
    for site in scanners.subscribers:
        scanners.on_told(site, "198.18.0.1")
    silences.on_told("watch", "acme/web-0.acme")
    place = ("north", 3, b"value")
    order = Order(
        "r0", "r1", told={place}, read={place}, archived={place},
        checkpoints=[(10, ("r0", "r1", "r2")), (20, ("r0", "r1", "r2"))],
    )  # fmt: skip
    shown = Shown(
        "north", 3, "198.18.0.1", b"value", 2000, "north", ("r0", "r1", "r2"), changed=64,
        refused=64,
    )  # fmt: skip
    lines = {name: line(name) for name in TOPICS}
    return Scene(60.0, lines, "r2", scanners, silences, order=order, shown=shown)


def complaint(scene: Scene) -> str:
    """What the demo says at its end, if anything was wrong."""
    try:
        verdict(scene.result())
    except QuorateError as error:
        return str(error)
    return ""


# Books


def test_lost_forged_and_doubled_events_are_told_apart_at_a_subscriber_and_in_the_archive() -> None:
    published = Counter({b"a": 1, b"b": 1, b"c": 2})
    arrived = Counter({b"a": 2, b"c": 2, b"z": 3})
    at_subscriber = line("north", published=published, delivered=arrived)
    assert (at_subscriber.lost, at_subscriber.forged, at_subscriber.duplicates) == (1, 3, 1)
    in_archive = line("north", published=published, delivered=published, archived=arrived)
    assert (in_archive.lost, in_archive.forged, in_archive.duplicates) == (1, 3, 1)


def test_a_scanner_is_found_when_every_site_knows_and_wrong_when_one_site_is_told() -> None:
    found = Found(("north", "east"), truth={"scanner": 0.0, "other": 0.0})
    assert not found.on_told("north", "scanner")
    assert (found.precision, found.recall) == (1.0, 0.0)
    assert found.on_told("east", "scanner")
    assert not found.on_told("east", "scanner")
    found.on_told("north", "innocent")
    assert (found.precision, found.recall) == (0.5, 0.5)
    assert found.result()["wrong"] == ["innocent"]
    assert found.result()["missed"] == ["other"]


def test_an_event_that_is_not_where_its_publisher_was_told_is_misplaced() -> None:
    order = Order(told={("north", 3, b"a")}, read={("north", 3, b"a")})
    assert order.misplaced() == 1
    order.archived.add(("north", 4, b"a"))
    assert order.misplaced() == 1
    order.archived.add(("north", 3, b"a"))
    assert order.misplaced() == 0


# Verdict


def test_where_every_promise_was_kept_there_is_nothing_to_say() -> None:
    assert complaint(played()) == ""


@pytest.mark.parametrize(
    ("published", "delivered", "sentence"),
    [
        (3, 0, "3 events were lost, 0 forged and 0 delivered twice where the contract"),
        (0, 3, "0 events were lost, 3 forged and 0 delivered twice where the contract"),
        (1, 4, "0 events were lost, 0 forged and 3 delivered twice where the contract"),
    ],
)
@pytest.mark.parametrize("topic", PROMISED)
def test_a_broken_promise_is_one_wherever_it_was_given(
    topic: str, published: int, delivered: int, sentence: str
) -> None:
    scene = played()
    scene.lines[topic].published = +Counter({b"value": published})
    scene.lines[topic].delivered = +Counter({b"value": delivered})
    assert sentence in complaint(scene)


def test_what_was_not_promised_is_not_held_against_a_topic() -> None:
    scene = played()
    scene.lines["syslog"].published = Counter({b"a": 1})
    scene.lines["syslog"].delivered = Counter({b"b": 2})
    assert complaint(scene) == ""


def test_who_was_missed_or_wrongly_reported_is_named() -> None:
    scene = played()
    scene.scanners.truth["198.18.0.9"] = 11.0
    scene.silences.on_told("watch", "acme/web-1.acme")
    assert complaint(scene) == (
        "of scanners and silent hosts, 198.18.0.9 were missed and acme/web-1.acme wrongly reported"
    )


def test_an_event_in_another_place_is_a_broken_promise() -> None:
    scene = played()
    scene.order.read.clear()
    assert complaint(scene) == "1 events do not stand where their publishers were told"


def test_a_proof_that_holds_with_a_byte_changed_is_no_proof() -> None:
    scene = played()
    scene.shown.refused -= 1
    assert complaint(scene) == "of 64 proofs with a changed byte, 63 were refused"


def test_checkpoints_that_do_not_grow_are_no_progress() -> None:
    scene = played()
    scene.order.checkpoints.pop()
    assert complaint(scene).startswith("the log's checkpoints did not grow")


# Words


def test_what_a_weak_topic_lost_is_said_to_be_within_its_contract() -> None:
    weak = line("syslog", published=Counter({b"a": 60}), delivered=Counter({b"z": 7}))

    words = weak_words(weak, "r2")

    assert not weak.tolerates_lies
    assert words.startswith("'syslog' promises to stand crashes only, and r2 lied: ")
    assert "that 60 events were lost, 7 forged and 0 delivered twice, its contract" in words


def test_a_report_has_the_sentences_the_plots_and_what_subscribers_printed(tmp_path: Path) -> None:
    scene = played()
    scene.tell("all sites block <198.18.0.1>")
    result = {**scene.result(), "report": "report.html"}
    write_report(tmp_path / "report.html", scene, result)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "all sites block &lt;198.18.0.1&gt;" in page
    assert all(sentence.split("'")[0][:40] in page for sentence in sentences(scene, result)[:-1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--seconds", 5), "a demo of 5 seconds; allowed are 15 to 900"),
        (("--report", "no/such/place.html"), "there is no directory"),
    ],
)
def test_a_demo_that_cannot_be_is_refused_before_anything_starts(
    options: tuple[object, ...], sentence: str
) -> None:
    outcome = quorate("demo", *options)
    assert outcome.code != 0
    assert sentence in outcome.err
