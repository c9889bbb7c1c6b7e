"""What a replica vouched for is kept for those who missed it, within bounds."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.core.ids import Lane, Stream
from quorate.core.limits import WINDOW_BATCHES
from quorate.crypto.digests import digest
from quorate.protocol.retention import Held, Retention

STREAM = Stream(1000, 7)


def keep(retention: Retention, first: int, *payloads: bytes, stream: Stream = STREAM) -> None:
    retention.keep(stream, first, [digest(p) for p in payloads], list(payloads))


def test_what_was_kept_can_be_had() -> None:
    retention = Retention()
    keep(retention, 5, b"five", b"six")

    assert retention.get(STREAM, 6) == Held(digest(b"six"), b"six")
    assert retention.get(STREAM, 7) is None
    assert retention.get(Stream(1001, 7), 6) is None
    assert retention.highest(STREAM) == 6
    assert retention.highest(Stream(1001, 7)) == 0


def test_the_first_content_stays() -> None:
    retention = Retention()
    keep(retention, 1, b"one", b"two")

    keep(retention, 2, b"another", b"three")

    assert retention.get(STREAM, 2) == Held(digest(b"two"), b"two")
    assert retention.get(STREAM, 3) == Held(digest(b"three"), b"three")
    assert retention.held_bytes == len(b"onetwothree")


def test_a_stream_keeps_no_more_than_a_window() -> None:
    retention = Retention()
    for number in range(1, 3 * WINDOW_BATCHES):
        keep(retention, number, b"x")

    last = 3 * WINDOW_BATCHES - 1
    assert retention.held_bytes <= WINDOW_BATCHES
    assert retention.get(STREAM, last) is not None
    assert retention.get(STREAM, last - WINDOW_BATCHES) is None


def test_bytes_are_bounded_and_the_oldest_go_first() -> None:
    retention = Retention(bytes_max=2 * 100)
    for number in range(1, 50):
        keep(retention, number, bytes(10))

    assert retention.held_bytes <= 100
    assert retention.get(STREAM, 49) is not None
    assert retention.get(STREAM, 1) is None


def test_a_batch_that_is_larger_than_its_share_is_kept_alone() -> None:
    retention = Retention(bytes_max=80)
    keep(retention, 1, b"small")

    keep(retention, 2, bytes(50))

    assert retention.get(STREAM, 1) is None
    assert retention.get(STREAM, 2) is not None


def test_a_stream_that_floods_does_not_push_out_another() -> None:
    retention = Retention(bytes_max=2 * 100)
    keep(retention, 1, bytes(50))

    for number in range(1, 500):
        keep(retention, number, bytes(50), stream=Stream(1001, 7))

    assert retention.get(STREAM, 1) is not None


def test_many_streams_with_one_large_batch_each_keep_to_the_bound_together() -> None:
    retention = Retention(bytes_max=1000)
    for publisher in range(2000, 2100):
        keep(retention, 1, bytes(300), stream=Stream(publisher, 7))

    assert retention.held_bytes <= 1000
    assert retention.get(Stream(2099, 7), 1) is not None


def test_a_publisher_that_is_gone_is_forgotten_on_that_topic_in_both_lanes() -> None:
    retention = Retention()
    others = Stream(1000, 8), Stream(1001, 7)
    for stream in (STREAM, STREAM._replace(lane=Lane.HISTORIES), *others):
        keep(retention, 1, b"one", stream=stream)

    retention.forget(1000, 7)

    assert retention.get(STREAM, 1) is None
    assert retention.get(STREAM._replace(lane=Lane.HISTORIES), 1) is None
    assert all(retention.get(stream, 1) is not None for stream in others)
    assert retention.held_bytes == 2 * len(b"one")


@given(
    st.lists(st.tuples(st.integers(1, 30), st.lists(st.binary(max_size=6), min_size=1, max_size=5)))
)
def test_within_its_bounds_it_is_a_dictionary_that_never_overwrites(
    given_runs: list[tuple[int, list[bytes]]],
) -> None:
    retention, naive = Retention(), dict[int, bytes]()
    for first, payloads in given_runs:
        keep(retention, first, *payloads)
        for number, payload in enumerate(payloads, start=first):
            naive.setdefault(number, payload)

    for number in range(1, 40):
        held = retention.get(STREAM, number)
        assert (held and held.payload) == naive.get(number)
    assert retention.held_bytes == sum(map(len, naive.values()))
