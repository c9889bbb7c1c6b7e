"""What the generator of packets promises: the same bytes, and the truth about who scans."""

from collections import Counter
from itertools import pairwise

import pytest

from quorate.core.errors import LocalProtocolError
from quorate.pipeline.data.sites import (
    EASY,
    HARD,
    OPEN_PORTS,
    SECOND_US,
    SETTINGS,
    Packet,
    Setting,
    Traffic,
)
from scans import Sighting, scanners, sighting

SEEDS = range(3)


def sightings(traffic: Traffic) -> list[Sighting]:
    return [sighting(packet) for packet in traffic]


def found(seen: list[Sighting], setting: Setting, threshold: int) -> dict[str, int]:
    return scanners(
        seen,
        threshold=threshold,
        sites=1,
        timeout_us=round(setting.timeout_s * SECOND_US),
        forget_us=round(setting.forget_s * SECOND_US),
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(name: str) -> None:
    setting = SETTINGS[name]

    once, again = Traffic(setting, seed=7, duration_s=30), Traffic(setting, seed=7, duration_s=30)

    assert list(once) == list(once) == list(again)
    assert once.crossings == again.crossings
    assert list(once) != list(Traffic(setting, seed=8, duration_s=30))


def test_packets_come_in_the_order_in_which_they_are_published() -> None:
    packets = list(Traffic(HARD, seed=1, duration_s=30, start_us=5_000 * SECOND_US))

    assert all(one.published_us <= other.published_us for one, other in pairwise(packets))
    assert packets[0].published_us >= 5_000 * SECOND_US
    # Some are published late, and the clocks of sites differ.
    assert any(one.time_us > other.time_us for one, other in pairwise(packets))


def test_no_packet_is_late_by_a_second_or_more() -> None:
    latest_us = 0
    for packet in Traffic(HARD, seed=1, duration_s=60):
        assert packet.time_us > latest_us - SECOND_US
        latest_us = max(latest_us, packet.time_us)


def test_the_key_of_an_event_is_the_source() -> None:
    packets = list(Traffic(EASY, seed=1, duration_s=20))

    assert all(packet.key.decode() == sighting(packet).source for packet in packets)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", SEEDS)
def test_all_sites_together_see_the_scanners_and_nobody_else(name: str, seed: int) -> None:
    setting = SETTINGS[name]
    traffic = Traffic(setting, seed=seed)

    truth = {source: crossing.time_us for source, crossing in traffic.crossings.items()}

    assert len(truth) == setting.scanners
    assert found(sightings(traffic), setting, setting.threshold) == truth


@pytest.mark.parametrize("seed", SEEDS)
def test_no_scanner_crosses_the_threshold_of_any_site(seed: int) -> None:
    traffic = Traffic(HARD, seed=seed)
    seen = sightings(traffic)

    for site in HARD.sites:
        here = [each for each in seen if each.site == site]
        assert not found(here, HARD, HARD.local_threshold).keys() & traffic.crossings.keys()


def test_innocent_sources_come_as_close_to_the_threshold_as_they_can() -> None:
    traffic = Traffic(HARD, seed=1)

    suspects = found(sightings(traffic), HARD, HARD.threshold - 1).keys()

    assert len(suspects - traffic.crossings.keys()) == HARD.gateways


def test_whoever_counts_handshakes_instead_of_what_was_probed_blames_the_innocent() -> None:
    traffic = Traffic(HARD, seed=1)
    as_many_hosts = [
        # As if each connection led to a destination of its own.
        each._replace(destination=f"{each.destination}:{each.source_port}")
        for each in sightings(traffic)
    ]

    assert found(as_many_hosts, HARD, HARD.threshold).keys() > traffic.crossings.keys()


def test_a_crossing_is_published_when_its_last_packet_is() -> None:
    traffic = Traffic(HARD, seed=1)
    resets: dict[tuple[str, int], Packet] = {}
    for packet in traffic:
        seen = sighting(packet)
        if seen.kind == "RST" and seen.port in OPEN_PORTS:
            resets[seen.source, seen.time_us] = packet

    by_reset = [each for each in traffic.crossings.values() if each.by_reset]

    assert 0 < len(by_reset) < len(traffic.crossings)
    for crossing in by_reset:
        packet = resets[crossing.source, crossing.time_us]
        assert crossing.published_us >= packet.published_us


def test_most_handshakes_complete_and_all_kinds_of_packets_are_there() -> None:
    kinds = Counter(each.kind for each in sightings(Traffic(HARD, seed=1, duration_s=60)))

    assert kinds["SYN"] > kinds["SYN-ACK"] > kinds["ACK"] > kinds["RST"] > 0
    assert kinds["ACK"] > 0.75 * kinds["SYN"]


def test_traffic_that_is_too_short_for_a_scan_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="allowed are 16 s and more"):
        Traffic(EASY, seed=1, duration_s=15)


def test_a_setting_in_which_a_site_would_notice_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="16 probes .* at 2 sites; allowed are 8"):
        Setting(
            sites=("one", "other"),
            excess=EASY.excess,
            pace=EASY.pace,
            failing=0.0,
            retried=0.0,
            resent=0.0,
            late=0.0,
            late_s=0.0,
            skew_s=0.0,
            slowness=0.0,
        )
