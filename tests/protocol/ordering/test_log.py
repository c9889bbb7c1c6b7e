"""The order log: what decided slots add up to, alike everywhere and after every restart."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.ids import node_of
from quorate.core.ordering import Line, Partition
from quorate.crypto.merkle import Tree
from quorate.protocol.ordering import log as module
from quorate.protocol.ordering.log import (
    RECENT_BATCHES_MIN,
    Content,
    LogState,
    OrderLog,
    Position,
)
from quorate.protocol.ordering.records import Decided
from quorate.protocol.ordering.value import (
    CHAIN_START,
    Span,
    Value,
    chain_of,
    chained,
    leaves_of,
    value_digest,
)
from stage import described

FIRST, SECOND = Line(1000, 7, 0), Line(1001, 7, 0)
ELSEWHERE = Line(1000, 7, 1)
LINES = (FIRST, SECOND, ELSEWHERE)


def contents_of(line: Line, first: int, count: int) -> list[bytes]:
    return [described(f"{line}{number}".encode()) for number in range(first, first + count)]


def apply(log: OrderLog, *takes: tuple[Line, int], time_us: int = 5) -> Decided:
    """Decide the next batches of some lines."""
    spans, contents = [], []
    for line, count in takes:
        state = log.line(line)
        descriptors = contents_of(line, state.next, count)
        spans.append(Span(*line, state.next, count, chain_of(state.chain, descriptors)[-1]))
        contents.append(Content(descriptors, []))
    value = Value(time_us, tuple(spans))
    encoded = value.encode()
    return log.apply(log.state.slot + 1, value_digest(encoded), encoded, value, contents)


def test_batches_get_the_next_offsets_of_their_partition() -> None:
    log = OrderLog(1)
    one = apply(log, (FIRST, 2), (ELSEWHERE, 1), (SECOND, 1))
    two = apply(log, (FIRST, 1))

    assert [(placed.publisher, placed.partition, placed.offset) for placed in one.placed] == [
        (1000, 0, 0), (1000, 1, 0), (1001, 0, 2),
    ]  # fmt: skip
    assert [placed.offset for placed in two.placed] == [3]
    assert log.partition(Partition(7, 0)).end == 4
    assert log.partition(Partition(7, 1)).end == 1


def test_leaves_are_numbered_through_all_partitions_of_the_group() -> None:
    log = OrderLog(1)
    one = apply(log, (FIRST, 2), (ELSEWHERE, 1), (SECOND, 1))
    assert [placed.leaf for placed in one.placed] == [0, 2, 3]

    tree = Tree()
    for placed in one.placed:
        for at in range(placed.count):
            tree.append(placed.leaves[32 * at : 32 * at + 32])
    assert (log.tree.size, log.tree.root()) == (4, tree.root())


def test_the_chain_of_a_partition_runs_through_the_leaves_of_all_its_batches() -> None:
    log = OrderLog(1)
    apply(log, (FIRST, 2), (SECOND, 1))
    apply(log, (FIRST, 1), time_us=6)

    leaves = [
        *leaves_of(FIRST, 1, 0, 5, contents_of(FIRST, 1, 2)),
        *leaves_of(SECOND, 1, 2, 5, contents_of(SECOND, 1, 1)),
        *leaves_of(FIRST, 3, 3, 6, contents_of(FIRST, 3, 1)),
    ]
    assert log.partition(Partition(7, 0)).chain == chained(CHAIN_START, leaves)[-1]


def test_a_record_has_the_chain_after_each_of_its_batches() -> None:
    log = OrderLog(1)
    (placed,) = apply(log, (FIRST, 2)).placed
    chains = chained(CHAIN_START, leaves_of(FIRST, 1, 0, 5, contents_of(FIRST, 1, 2)))
    assert placed.chains == b"".join(chains)
    assert placed.descriptors == b"".join(contents_of(FIRST, 1, 2))


def test_a_span_fits_only_where_its_line_goes_on() -> None:
    """That is how duplicates and replays are recognised, however old they are."""
    log = OrderLog(1)
    span = Span(*FIRST, 1, 2, bytes(32))
    assert log.fits(span)
    apply(log, (FIRST, 2))
    assert not log.fits(span)
    assert not log.fits(span._replace(first=2))
    assert not log.fits(span._replace(first=4))
    assert log.fits(span._replace(first=3))
    assert log.fits(Span(*SECOND, 1, 1, bytes(32)))


def test_positions_of_the_last_batches_are_kept_and_of_older_ones_not() -> None:
    log = OrderLog(1)
    for _ in range(6):
        apply(log, (FIRST, RECENT_BATCHES_MIN // 2))

    recent = log.line(FIRST).recent

    assert recent[-1] == Position(2561, 512, 2560, 5)
    assert sum(position.batches for position in recent) >= RECENT_BATCHES_MIN
    assert len(recent) < 6


def test_a_record_says_which_payloads_are_not_here() -> None:
    log = OrderLog(1)
    descriptors = contents_of(FIRST, 1, 2)
    value = Value(5, (Span(*FIRST, 1, 2, chain_of(CHAIN_START, descriptors)[-1]),))
    decided = log.apply(1, bytes(32), value.encode(), value, [Content(descriptors, [1])])
    assert [placed.lacking for placed in decided.placed] == [[1]]


def test_lines_of_a_session_are_forgotten_when_a_slot_ends_it_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LINES_PER_MEMBER_MAX", 2)
    log = OrderLog(1)
    sessions = [Line(node_of(1000, session), 7, 0) for session in range(4)]
    apply(log, (sessions[0], 1), (SECOND, 1))
    apply(log, (sessions[1], 1))
    assert log.beyond(sessions) == sessions[2:]
    assert log.beyond(sessions, [sessions[1].publisher]) == sessions[3:]
    digests = contents_of(sessions[2], 1, 1)
    span = Span(*sessions[2], 1, 1, chained(CHAIN_START, digests)[-1])
    value = Value(5, (span,), (sessions[1].publisher,))
    log.apply(3, bytes(32), value.encode(), value, [Content(digests, [])])
    assert log.forgotten == [sessions[1]]
    assert [log.line(line).next for line in (*sessions, SECOND)] == [2, 1, 2, 1, 2]
    assert log.beyond(sessions) == [sessions[1], sessions[3]]


def test_positions_of_a_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POSITIONS_PER_MEMBER_MAX", 8)
    log = OrderLog(1)
    lines = [Line(node_of(1000, session), 7, 0) for session in range(3)]
    for line in lines:
        for _ in range(4):
            apply(log, (line, 1))
    assert [len(log.line(line).recent) for line in lines] == [0, 4, 4]
    assert [log.line(line).next for line in lines] == [5, 5, 5]


def test_a_fresh_log_knows_nothing_of_another() -> None:
    """Defaults are not shared."""
    apply(OrderLog(1), (FIRST, 2))
    assert OrderLog(1).line(FIRST).next == 1
    assert OrderLog(1).state.size == 0
    assert OrderLog(1).line(FIRST).recent == []


SLOTS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(LINES), st.integers(1, 5)),
        min_size=1,
        max_size=3,
        unique_by=lambda take: take[0],
    ),
    max_size=12,
)


@given(SLOTS, st.integers(0, 12))
def test_a_snapshot_and_what_came_after_it_are_as_good_as_everything(
    slots: list[list[tuple[Line, int]]], taken_after: int
) -> None:
    log, restored = OrderLog(1), OrderLog(1)
    for number, takes in enumerate(slots, 1):
        apply(log, *takes, time_us=number)
        if number == taken_after:
            snapshot = log.snapshot(regency=3)
            assert (snapshot.slot, snapshot.regency) == (number, 3)
            state = msgspec.msgpack.decode(snapshot.state, type=LogState)
            restored = OrderLog(1, state)
        elif number > taken_after and taken_after:
            apply(restored, *takes, time_us=number)

    if 0 < taken_after <= len(slots):
        assert restored.state == log.state
        assert restored.tree.root() == log.tree.root()
