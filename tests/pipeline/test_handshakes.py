"""What becomes of the handshakes of one source, without Spark."""

from itertools import chain, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.pipeline.jobs.handshakes import (
    FOREVER_US,
    KINDS,
    NEVER_US,
    Found,
    Handshakes,
    Packet,
    Rules,
)
from scans import Sighting, scanners

RULES = Rules(threshold=2, sites_min=2, timeout_us=3, forget_us=20, delay_us=0, connections_max=100)
PROBED = ["SYN", "SYN-ACK", "RST"]


def packets(kinds: list[str], *, at_us: int, site: str = "north", port: int = 80) -> list[Packet]:
    """A handshake with a packet in each microsecond."""
    return [
        Packet(at_us + number, KINDS.index(kind), site, "10.0.0.1", port, 40_000)
        for number, kind in enumerate(kinds)
    ]


def verdict(*handshakes: list[Packet], clock_us: int = NEVER_US) -> Found | None:
    source = Handshakes()
    found = source.on_packets([each for one in handshakes for each in one], RULES)
    return found[0] if found else source.on_clock(clock_us, RULES)


def with_a_probe_elsewhere(kinds: list[str], clock_us: int = NEVER_US) -> Found | None:
    return verdict(
        packets(PROBED, at_us=0, site="east"), packets(kinds, at_us=5), clock_us=clock_us
    )


def test_a_reset_counts_at_once() -> None:
    assert with_a_probe_elsewhere(PROBED) == Found(2, ["east", "north"], 7)


def test_silence_counts_when_the_time_out_has_passed() -> None:
    assert with_a_probe_elsewhere(["SYN", "SYN-ACK"], clock_us=8) is None
    assert with_a_probe_elsewhere(["SYN", "SYN-ACK"], clock_us=9) == Found(2, ["east", "north"], 9)


@pytest.mark.parametrize(
    "kinds",
    [
        ["SYN", "SYN-ACK", "ACK"],
        ["SYN", "SYN-ACK", "ACK", "RST"],
        ["SYN", "SYN", "SYN-ACK", "ACK"],
        ["SYN", "RST"],
        ["SYN", "SYN", "SYN"],
        # The beginning is from before the job began.
        ["SYN-ACK", "RST"],
    ],
)
def test_what_is_complete_or_refused_or_not_answered_or_half_seen_does_not_count(
    kinds: list[str],
) -> None:
    assert with_a_probe_elsewhere(kinds, clock_us=1_000) is None


@pytest.mark.parametrize("decoy", ["ACK", "RST"])
def test_what_a_source_sends_before_it_is_answered_makes_no_probe_harmless(decoy: str) -> None:
    assert with_a_probe_elsewhere(["SYN", decoy, *PROBED[1:]]) == Found(2, ["east", "north"], 8)
    assert with_a_probe_elsewhere(["SYN", decoy, "SYN-ACK"], clock_us=1_000) is not None


@pytest.mark.parametrize("stray", ["ACK", "RST"])
def test_who_completes_a_handshake_is_no_scanner_though_a_stray_packet_came_before(
    stray: str,
) -> None:
    assert with_a_probe_elsewhere(["SYN", stray, "SYN-ACK", "ACK", "RST"], clock_us=1_000) is None


def test_the_same_destination_and_port_count_once_however_often_they_are_probed() -> None:
    many = [packets(["SYN", *PROBED], at_us=at_us) for at_us in range(0, 20, 5)]
    others = [[each._replace(source_port=5) for each in one] for one in many]

    assert verdict(*many, *others, clock_us=1_000) is None


def test_one_site_alone_makes_nobody_a_scanner() -> None:
    probes = [packets(PROBED, at_us=port, port=port) for port in range(10)]

    assert verdict(*probes) is None
    assert verdict(*probes, packets(PROBED, at_us=10, site="east")) is not None


def test_what_lies_back_further_than_the_forgetting_time_does_not_count() -> None:
    assert verdict(packets(PROBED, at_us=0, site="east"), packets(PROBED, at_us=19)) is not None
    assert verdict(packets(PROBED, at_us=0, site="east"), packets(PROBED, at_us=20)) is None


def test_an_ack_that_comes_after_the_reset_it_preceded_takes_it_back() -> None:
    source = Handshakes()
    syn, answer, ack, reset = packets(["SYN", "SYN-ACK", "ACK", "RST"], at_us=0)
    source.on_packets([syn, answer, reset], RULES)
    assert len(source.probes) == 1

    source.on_packets([ack], RULES)

    assert not source.probes


def test_a_source_is_found_once_until_it_was_silent_for_the_forgetting_time() -> None:
    def scan(at_us: int) -> list[Packet]:
        return packets(PROBED, at_us=at_us, site="east") + packets(PROBED, at_us=at_us)

    source = Handshakes()
    found = []
    for at_us in (0, 10, 20, 100, 110):
        found.append(source.on_packets(scan(at_us), RULES))
        source.on_clock(at_us + 2, RULES)

    assert [len(each) for each in found] == [1, 0, 0, 1, 0]
    # The same, if all of it is one batch.
    batch = [each for at_us in (0, 10, 20, 100, 110) for each in scan(at_us)]
    assert Handshakes().on_packets(batch, RULES) == [*found[0], *found[3]]


def test_nothing_is_remembered_for_longer_than_it_is_of_use() -> None:
    source = Handshakes()
    source.on_packets(packets(["SYN", "SYN-ACK", "ACK"], at_us=0), RULES)
    assert source.wake_us(RULES) is not None
    source.on_clock(4, RULES)
    assert source.wake_us(RULES) is None

    source.on_packets(packets(PROBED, at_us=10), RULES)
    source.on_clock(15, RULES)
    assert source.wake_us(RULES) == 12 + 20
    source.on_clock(32, RULES)
    assert source.wake_us(RULES) is None

    source.on_packets(packets(PROBED, at_us=40), RULES)
    source.on_packets(packets(PROBED, at_us=40, site="east"), RULES)
    assert source.was_found
    assert not source.connections
    assert not source.probes
    assert source.wake_us(RULES) == 42 + 20
    source.on_clock(62, RULES)
    assert source.wake_us(RULES) is None


def test_state_is_bounded_whatever_a_source_does() -> None:
    source = Handshakes()
    for port in range(1_000):
        source.on_packets(packets(["SYN"], at_us=0, port=port), RULES)
    assert len(source.connections) == RULES.connections_max

    for port in range(1_000):
        source.on_packets(packets(PROBED, at_us=10 + port, port=port), RULES)
    assert len(source.connections) <= 10
    assert len(source.probes) == RULES.threshold


def test_state_survives_being_packed() -> None:
    source = Handshakes()
    source.on_packets(packets(PROBED, at_us=0) + packets(["SYN"], at_us=5, port=81), RULES)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(source), type=Handshakes) == source


def test_what_a_packet_claims_of_a_time_to_come_ends_no_time_out_before_it_is_over() -> None:
    source = Handshakes()
    source.on_packets(packets(["SYN", "SYN-ACK"], at_us=0), RULES)
    liar = packets(["SYN"], at_us=1_000, site="south")

    source.on_packets(liar, RULES, now_us=3)
    assert not source.probes

    source.on_packets(liar, RULES, now_us=4)
    assert len(source.probes) == 1


@st.composite
def handshakes(draw: st.DrawFn) -> list[Packet]:
    """Packets of one connection, more often than not in an order that occurs."""
    ends = st.sampled_from([["RST"], ["ACK"], ["ACK", "RST"], []])
    begins = st.sampled_from([["SYN"], ["SYN", "ACK"], ["SYN", "RST"]])
    usual = st.tuples(begins, ends).map(lambda both: [*both[0], "SYN-ACK", *both[1]])
    kinds = draw(usual | st.lists(st.sampled_from(KINDS), max_size=5))
    at_us = draw(st.integers(0, 60))
    place = (draw(st.sampled_from(["north", "east", "south"])), draw(st.sampled_from("abc")))
    source_port = draw(st.sampled_from([40_000, 40_001]))
    sent = []
    for kind in kinds:
        sent.append(Packet(at_us, KINDS.index(kind), *place, 80, source_port))
        at_us += draw(st.integers(0, 3))
    return sent


traffic = st.lists(handshakes(), max_size=15).map(lambda each: [*chain.from_iterable(each)])


@given(traffic, st.sets(st.integers(1, 70), max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_the_verdict_is_that_of_the_oracle_however_packets_are_cut_into_batches(
    sent: list[Packet], cuts: set[int], threshold: int, sites: int
) -> None:
    rules = Rules(
        threshold=threshold, sites_min=sites, timeout_us=5, forget_us=20, delay_us=0,
        connections_max=100,
    )  # fmt: skip
    sightings = [
        Sighting(each.at_us, KINDS[each.kind], each.site, "source", *each[3:]) for each in sent
    ]
    truth = scanners(sightings, threshold=threshold, sites=sites, timeout_us=5, forget_us=20)

    source = Handshakes()
    found: list[Found | None] = []
    for begin, end in pairwise([0, *sorted(cuts), FOREVER_US]):
        batch = [each for each in sent if begin <= each.at_us < end]
        found += source.on_packets(batch, rules)
        if batch:
            found.append(source.on_clock(source.latest_us, rules))
    found.append(source.on_clock(FOREVER_US, rules))

    moments = [each.crossed_at_us for each in found if each is not None]
    assert moments[:1] == list(truth.values())
