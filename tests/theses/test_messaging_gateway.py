"""The messaging gateway (Seebacher 2013), statement by statement (G12 and G13, as far as they are).

Each test names the section that it plays. The thesis calls gumafilter what is the filter here, an
MSS host what is a host, a gumaserver what is a broker, and GUMA:UNKNOWN what is UNKNOWN.

Load balance, message and data rates, heartbeat delay and heartbeat loss (3.3.2, 3.3.3 and 3.3.5)
are counted by Spark alone, so they are held against counts by hand in `pipeline/test_monitor.py`,
and against the thesis' own ways to count in `pipeline/test_gateway_figures.py`. Here is what knows
nothing of Spark: the filter and its library, content by signature, and who falls silent.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import groupby

import msgspec
import pytest

from estates import returns
from quorate.pipeline.data.hosts import HEARTBEATS, SECOND_US, SYSLOG, Estate, Recording
from quorate.pipeline.filtering import Filter, Filtered
from quorate.pipeline.signatures import UNKNOWN, Pattern, read_patterns
from quorate.pipeline.silence import Change, Limits, Watch

# A heartbeat every minute for nine hours, and 0.3 lines (3.3.1, 3.3.3).
AS_IN_THE_THESIS = Estate(
    seed=1, duration_s=9 * 3600, period_s=60, lines_per_s=0.3 / 60, loss_max=0.02
)
PERIODS = 5


@pytest.fixture(scope="module")
def recording() -> Recording:
    return AS_IN_THE_THESIS.record()


class Line(msgspec.Struct):
    line: str


def lines_of(recording: Recording) -> list[tuple[str, str]]:
    """The lines that hosts wrote, each with what it is."""
    return [
        (msgspec.json.decode(each.value, type=Line).line, each.signature or UNKNOWN)
        for each in recording.messages
        if each.topic == SYSLOG
    ]


# G13: the filter and its pattern library (3.2.1)


def test_a_line_has_the_signature_of_the_pattern_that_it_matches(recording: Recording) -> None:
    """3.2.1: "a list of regular expressions with an associated signature". For each signature,
    precision and recall are 1, and nobody told the library what the lines would be."""
    library = Filter(read_patterns())
    given = [(library.take(line), true) for line, true in lines_of(recording)]
    for signature in {true for _, true in given}:
        found = {n for n, (each, _) in enumerate(given) if each and each.signature == signature}
        wanted = {n for n, (_, true) in enumerate(given) if true == signature}
        right = len(found & wanted)
        assert (right / len(found), right / len(wanted)) == (1.0, 1.0), signature
    assert len({true for _, true in given}) == 20


def test_a_rule_says_whether_a_message_is_dropped() -> None:
    """3.2.1: "to then either drop the message, or to reformat it"."""
    noise = Pattern("CRON:COMMAND", r"^CRON\[\d+\]: ", drop=True)
    assert Filter([noise]).take("CRON[411]: (root) CMD (true)") is None
    assert Filter([noise._replace(drop=False)]).take("CRON[411]: (root) CMD (true)") is not None


def test_what_the_library_knows_goes_with_the_message() -> None:
    """3.2.1: "enriched with supplementary information retrieved from the corresponding entry in the
    pattern library", such as "identifiers of applications and hosts". Here as JSON."""
    about = (("application", "tunnels"), ("host", "vpn-1"))
    (value,) = Filter([Pattern("VPN", "^charon", about=about)]).values(["charon: up"])
    assert msgspec.json.decode(value) == {
        "line": "charon: up",
        "signature": "VPN",
        "about": {"application": "tunnels", "host": "vpn-1"},
    }


def test_what_no_pattern_matches_is_forwarded_as_unknown(recording: Recording) -> None:
    """3.2.1: "in order to be able to learn about new messages". None is dropped or changed."""
    library = Filter(read_patterns())
    unknown = [line for line, true in lines_of(recording) if true == UNKNOWN]
    assert [library.take(line) for line in unknown] == [Filtered(line, UNKNOWN) for line in unknown]
    assert len(unknown) > 50


def test_the_library_becomes_better_by_what_was_unknown(recording: Recording) -> None:
    """3.3.4: lines about defective RRD files had no signature. One that is written for them names
    all of them, and takes none of the others away."""
    written = Pattern("RRD:DAMAGED", r"^rrdtool\[\d+\]: ERROR: \S+: illegal attempt to update")
    lines = [line for line, _ in lines_of(recording)]
    before = [each.signature for each in map(Filter(read_patterns()).take, lines) if each]
    better = Filter([*read_patterns(), written])
    after = [each.signature for each in map(better.take, lines) if each]
    changed = [line for line, old, new in zip(lines, before, after, strict=True) if old != new]
    assert changed == [line for line in lines if line.startswith("rrdtool")]
    assert Counter(after)["RRD:DAMAGED"] == len(changed) > 5


def test_patterns_are_tried_in_the_order_of_the_library() -> None:
    """3.2.1: a list. What is special comes before what is general."""
    special, general = Pattern("SPECIAL", "^a: b"), Pattern("GENERAL", "^a")
    lines = ["a: b", "a: c"]
    names = [each.signature for each in map(Filter([special, general]).take, lines) if each]
    assert names == ["SPECIAL", "GENERAL"]
    names = [each.signature for each in map(Filter([general, special]).take, lines) if each]
    assert names == ["GENERAL", "GENERAL"]


# G12: content by signature (3.3.4)


def test_the_occurrence_of_each_signature_is_counted_and_unknown_ones_are_too(
    recording: Recording,
) -> None:
    """3.3.4 and figure 3.10: "we determined the occurrence of each GUMA signature". Heartbeats are
    most of what hosts send: 74 % in the thesis."""
    library = Filter(read_patterns())
    lines = lines_of(recording)
    counted = Counter(each.signature for each in map(library.take, [t for t, _ in lines]) if each)
    assert counted == Counter(true for _, true in lines)
    assert counted.most_common(1)[0][0] == UNKNOWN
    beats = sum(each.topic == HEARTBEATS for each in recording.messages)
    assert 0.7 < beats / len(recording.messages) < 0.8


# G12: absence of messages (3.3.5, 4.2.5)

DELAY_MS = 10_000


def watched(recording: Recording, *, periods: int = PERIODS) -> list[tuple[str, Change]]:
    """What a watch of each host says, who hear of heartbeats minute by minute."""
    silent_ms = round(periods * recording.estate.period_s * 1000)
    limits = Limits(silent_ms, silent_ms + 7 * 86_400_000)
    watches: defaultdict[str, Watch] = defaultdict(Watch)
    beats = [each for each in recording.messages if each.topic == HEARTBEATS]
    changes = []
    for _, minute in groupby(beats, key=lambda each: each.arrives_us // (60 * SECOND_US)):
        for each in minute:
            watches[each.key.decode()].hear([each.arrives_us // 1000])
            latest_ms = each.arrives_us // 1000
        changes += advanced(watches, latest_ms - DELAY_MS, limits)
    return changes + advanced(watches, recording.estate.end_us // 1000, limits)


def advanced(watches: dict[str, Watch], to_ms: int, limits: Limits) -> list[tuple[str, Change]]:
    return [
        (host, each) for host, watch in watches.items() for each in watch.advance(to_ms, limits)
    ]


def hosts(changes: Iterable[tuple[str, Change]], kind: str) -> list[str]:
    return sorted(host for host, change in changes if change.kind == kind)


@pytest.mark.parametrize("period_s", [5, 60])
@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_fails_is_known_by_the_absence_of_what_arrives_regularly(
    seed: int, period_s: int
) -> None:
    """4.2.5: "We can detect the failure of either a host or just its messaging gateway by the
    absence of messages, especially of those that are to arrive regularly". Whether it was cut off,
    stood still or crashed: one alert for each that failed and one all-clear for each that is back,
    precision 1 and recall 1."""
    estate = Estate(
        seed=seed, period_s=period_s, duration_s=360 * period_s, lines_per_s=0,
        outage_periods=(7, 14),
    )  # fmt: skip
    recording = estate.record()
    limit_us = PERIODS * period_s * SECOND_US
    changes = watched(recording)
    assert hosts(changes, "silent") == sorted(recording.silences(limit_us))
    assert hosts(changes, "back") == sorted(returns(recording, limit_us))
    assert (len(hosts(changes, "silent")), len(hosts(changes, "back"))) == (5, 3)


def test_an_alert_says_since_when_and_comes_after_five_periods(recording: Recording) -> None:
    """4.2.5. A host is silent since the last heartbeat that arrived, whether the next one was sent
    or not, and comes back when it is heard again."""
    changes = watched(recording)
    assert changes
    for host, change in changes:
        outage = recording.by_name[host].outage
        assert outage is not None
        arrived_ms = [
            each.arrives_us // 1000
            for each in recording.heartbeats
            if each.host == host and each.arrives_us is not None and each.sent_us < outage.from_us
        ]
        assert change.since_ms == max(arrived_ms)
        if change.kind == "silent":
            assert change.at_ms == change.since_ms + PERIODS * 60_000
        else:
            assert outage.until_us is not None
            assert change.at_ms * 1000 >= outage.until_us


@pytest.mark.parametrize("seed", range(3))
def test_heartbeats_that_get_lost_raise_no_alarm(seed: int) -> None:
    """3.3.5: hosts that lose heartbeats are not hosts that failed. One of ten is lost here."""
    lossy = Estate(seed=seed, loss_max=0.2, outages=0, departures=0, stumbles=0)
    recording = lossy.record()
    lost = sum(each.arrives_us is None for each in recording.heartbeats)
    assert lost / len(recording.heartbeats) > 0.05
    assert watched(recording) == []
    assert watched(recording, periods=1) != []


def test_a_clock_that_is_wrong_raises_no_alarm() -> None:
    """3.3.5: "Additional uncertainty is introduced if the MSS hosts failed to synchronize their
    clock". Clocks are off by up to an hour, and it is the brokers' that count."""
    skewed = Estate(seed=4, skew_s_max=3600)
    recording = skewed.record()
    assert max(abs(host.skew_us) for host in recording.hosts) > 600 * SECOND_US
    limit_us = round(PERIODS * skewed.period_s * SECOND_US)
    assert hosts(watched(recording), "silent") == sorted(recording.silences(limit_us))
