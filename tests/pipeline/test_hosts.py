"""Recordings of hosts: the same for the same seed, in order, and true to what they say of it."""

from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest

from estates import returns, table_of
from quorate.core.errors import LocalProtocolError
from quorate.pipeline.data.hosts import HEARTBEATS, SYSLOG, Estate, Message, Recording

ESTATE = Estate(seed=11)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return ESTATE.record()


def of(recording: Recording, topic: str, host: str) -> list[Message]:
    return [each for each in recording.messages if (each.topic, each.key) == (topic, host.encode())]


def header(message: Message, name: str) -> bytes:
    return dict(message.headers)[name]


def test_a_seed_says_all_that_happens(recording: Recording) -> None:
    again = ESTATE.record()

    assert again.messages == recording.messages
    assert again.heartbeats == recording.heartbeats
    assert table_of(again).equals(table_of(recording))
    assert replace(ESTATE, seed=12).record().messages != recording.messages


def test_messages_come_in_the_order_in_which_brokers_take_them(recording: Recording) -> None:
    times = [message.arrives_us for message in recording.messages]

    assert times == sorted(times)
    assert {message.topic for message in recording.messages} == {HEARTBEATS, SYSLOG}
    assert {header(message, "broker") for message in recording.messages} == {
        broker.encode() for broker in ESTATE.brokers
    }
    assert all(int(header(each, "received")) == each.arrives_us for each in recording.messages)


def test_a_lost_heartbeat_is_never_published_and_any_other_is(recording: Recording) -> None:
    for host in recording.hosts:
        sent = [each for each in recording.heartbeats if each.host == host.name]
        arriving = {(each.boot, each.number) for each in sent if each.arrives_us is not None}
        published = [msgspec.json.decode(m.value) for m in of(recording, HEARTBEATS, host.name)]
        assert {(each["boot"], each["number"]) for each in published} == arriving
    assert any(each.arrives_us is None for each in recording.heartbeats)


def test_a_message_shows_the_time_of_a_clock_that_is_wrong(recording: Recording) -> None:
    for host in recording.hosts:
        lags_us = [m.arrives_us - m.timestamp_us for m in of(recording, HEARTBEATS, host.name)]
        assert min(lags_us) + host.skew_us >= host.delay_us_min
    assert max(abs(host.skew_us) for host in recording.hosts) > 1_000_000


def test_nothing_is_sent_in_an_outage(recording: Recording) -> None:
    silent = [host for host in recording.hosts if host.outage is not None]
    for host in silent:
        for message in [m for m in recording.messages if m.key == host.name.encode()]:
            assert host.outage is not None
            assert not host.outage.covers(message.timestamp_us - host.skew_us)
    assert len(silent) == ESTATE.outages + ESTATE.departures + ESTATE.stumbles
    assert sum(host.outage.until_us is None for host in silent if host.outage) == ESTATE.departures


def test_numbers_tell_how_a_host_fell_silent() -> None:
    """Cut off, numbers are missing; standing still, none is; after a crash they begin again."""
    seen = set()
    for seed in range(6):
        recording = Estate(seed=seed, loss_max=0.0, lines_per_s=0.0).record()
        for name in returns(recording, limit_us=25_000_000):
            outage = recording.by_name[name].outage
            assert outage is not None
            places = [
                (each.boot, each.number) for each in recording.heartbeats if each.host == name
            ]
            jumps = [
                (after[0] - before[0], after[1] - before[1])
                for before, after in pairwise(places)
                if after != (before[0], before[1] + 1)
            ]
            seen.add(outage.kind)
            if outage.kind == "stall":
                assert jumps == []
            else:
                ((boots, numbers),) = jumps
                assert boots == (outage.kind == "crash")
                assert (numbers < 0) == (outage.kind == "crash")
    assert seen == {"cut", "crash", "stall"}


def test_lines_are_known_or_have_a_template(recording: Recording) -> None:
    lines = [message for message in recording.messages if message.topic == SYSLOG]
    unknown = [line for line in lines if line.signature is None]

    assert all((line.signature is None) != (line.template is None) for line in lines)
    assert 0.05 < len(unknown) / len(lines) < 0.15


def test_hosts_with_sticky_connections_stay_with_one_broker() -> None:
    recording = replace(ESTATE, reconnect_s=None).record()
    for host in recording.hosts:
        brokers = {header(message, "broker") for message in of(recording, SYSLOG, host.name)}
        assert len(brokers) == 1


def test_more_silent_hosts_than_hosts_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="13 hosts are to fall silent, but there are 12"):
        Estate(seed=1, stumbles=8)
    with pytest.raises(LocalProtocolError, match="must be 400 at least"):
        Estate(seed=1, duration_s=60.0)
