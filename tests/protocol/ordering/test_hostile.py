"""Whatever a faulty replica or client says, in whatever order: nothing is raised, and the
others agree.

Messages are drawn from their declarations, with numbers and contents that are often almost right.
"""

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from council import (
    CRASH,
    READER,
    VALIDATED,
    A,
    B,
    Council,
    T,
    payload_of,
    sealed_by,
    span_of,
    value_of,
)
from declared import messages
from quorate.core import codec
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    Absent,
    Announce,
    AskReceipts,
    Chained,
    Challenge,
    Entries,
    OrderMessage,
    Partition,
    Promised,
    Receipts,
    Refusal,
    Signed,
    State,
    StopData,
    Stored,
    Sync,
)
from quorate.crypto.digests import batch_digest
from quorate.protocol.ordering.placement import GroupKind, stores_of
from quorate.protocol.ordering.reading import Reading
from quorate.protocol.ordering.replica import HANDLERS
from quorate.protocol.ordering.value import CHAIN_START, chain_of, value_digest
from quorate.sim.order_stage import SimSigner
from stage import Outlook, described, event, topic

LIAR = 3
GROUP = int(GroupKind.BYZANTINE)
LARGEST = 2**64 - 1
PAYLOADS = [event(each) for each in (b"a1", b"a2", b"", bytes(5000))]
CHAINS = chain_of(CHAIN_START, map(described, (b"a1", b"a2")))
VALUES = [
    value_of(span_of(A, 1, b"a1")),
    value_of(span_of(A, 1, b"a1", b"a2")),
    value_of(span_of(A, 1, b"made up"), span_of(B, 1, b"b1")),
    value_of(span_of(A, 2, b"a2", before=CHAINS[0])),
    value_of(span_of(A, 1, b"a1"), time_us=2**63 - 1),
]
SMALL = st.sampled_from([0, 1, 1, 1, 2, 3])
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.just(T),
    "partition": st.sampled_from([0, 0, 0, 1]),
    "group": st.just(GROUP),
    "publisher": st.sampled_from([A, B, READER, LIAR]),
    "value": st.sampled_from(VALUES) | st.binary(max_size=80),
    "digest": st.sampled_from([value_digest(value) for value in VALUES]),
    "chain": st.sampled_from([*CHAINS, CHAIN_START]),
    "before": st.sampled_from([*CHAINS, CHAIN_START]),
    "payloads": st.lists(st.sampled_from(PAYLOADS), min_size=1, max_size=3),
    "digests": st.lists(st.sampled_from(PAYLOADS).map(batch_digest), min_size=1, max_size=3),
    "descriptors": st.lists(st.sampled_from(PAYLOADS).map(described), min_size=1, max_size=3),
}


def almost_right(declared: inspect.Type, name: str) -> st.SearchStrategy[Any] | None:
    # Two messages have fields of these names that are something else.
    is_other = isinstance(declared, inspect.BytesType | inspect.BoolType | inspect.StrType)
    if name in KNOWN and not (is_other and name in ("digests", "descriptors", "payloads", "group")):
        return KNOWN[name]
    if isinstance(declared, inspect.IntType):
        return SMALL | st.sampled_from([7, 4096, 65535, 2**63 - 1, 2**63 - 1, LARGEST])
    return None


@st.composite
def states(draw: st.DrawFn, regency: int) -> bytes:
    """What may stand in a signed state, true or not."""
    slot = draw(st.integers(1, 3))
    digests = st.sampled_from([value_digest(value) for value in VALUES] + [b"", b"x"])
    promised = [
        Promised(
            each,
            draw(st.integers(0, regency)),
            draw(digests),
            draw(st.dictionaries(digests, st.integers(0, regency), max_size=2)),
        )
        for each in draw(st.sampled_from([[slot], [slot - 1, slot], [], [slot, slot]]))
    ]
    return msgspec.msgpack.encode(State(GROUP, regency, slot, promised))


@st.composite
def stop_data(draw: st.DrawFn) -> StopData:
    regency = draw(st.integers(1, 5))
    state = draw(states(regency) | st.binary(max_size=20))
    values = draw(st.lists(st.sampled_from(VALUES) | st.binary(max_size=9), max_size=2))
    return StopData(GROUP, regency, state, SimSigner(LIAR).sign(state), values)


@st.composite
def syncs(draw: st.DrawFn) -> Sync:
    """With as many states as it takes; the liar cannot sign for others, but this one can."""
    regency = draw(st.integers(2, 5))
    signers = draw(st.sampled_from([(0, 1, 2), (1, 2, 3), (0, 1, 2, 3), (3, 3, 3)]))
    signed = []
    for signer in signers:
        state = draw(states(regency))
        signed.append(Signed(signer, state, SimSigner(signer).sign(state)))
    return Sync(GROUP, regency, signed, draw(st.lists(st.sampled_from(VALUES), max_size=2)))


SPOKEN = messages(get_args(OrderMessage), almost_right)
SPOKEN[StopData] = stop_data()
TO_REPLICAS = [kind for kind in SPOKEN if kind in HANDLERS]


def as_received(message: Any) -> Any:
    """The message, or None where it does not get as far as the machine."""
    with suppress(RemoteProtocolError):
        return codec.decode(memoryview(codec.encode(message))[codec.LENGTH.size :])
    return None


SPEECH = st.lists(
    st.tuples(
        st.sampled_from([LIAR, LIAR, LIAR, A, READER]),
        st.sampled_from(TO_REPLICAS).flatmap(SPOKEN.__getitem__),
    ),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("begun", [False, True], ids=["from the beginning", "after a slot"])
@settings(max_examples=200)
@given(SPEECH)
def test_whatever_is_said_to_replicas_nothing_is_raised_and_they_agree(
    begun: bool, speech: list[tuple[NodeId, Any]]
) -> None:
    council = Council(byzantine=(LIAR,))
    if begun:
        council.publish(A, 1)
        council.settle()
    for at, (sender, message) in enumerate(speech):
        received = as_received(message)
        if received is not None:
            council.say(sender, (0, 1, 2), received)
        if at % 5 == 4:
            council.run(0.05)
    council.publish(B, 1)
    council.run(0.5)

    longest = max((council.log(replica) for replica in (0, 1, 2)), key=len)
    for replica in (0, 1, 2):
        held = council.log(replica)
        assert held == longest[: len(held)]


ABOUT_STORES = [Stored, Challenge, Refusal, AskReceipts, Receipts, Absent, Entries, Announce]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([LIAR, LIAR, A, READER]),
            st.sampled_from(ABOUT_STORES).flatmap(SPOKEN.__getitem__),
        ),
        min_size=1,
        max_size=15,
    )
)
def test_whatever_is_said_about_stores_nothing_is_raised_and_nobody_correct_is_blamed(
    speech: list[tuple[NodeId, Any]],
) -> None:
    council = Council(VALIDATED, byzantine=(LIAR,))
    stores = [node for node in stores_of(council.members, Partition(T, 0)) if node != LIAR][:2]
    council.hand_in(A, 1, sealed_by(A, 1, bytes(5000)), stores=stores)
    council.settle()
    for at, (sender, message) in enumerate(speech):
        received = as_received(message)
        if received is not None and type(received) in HANDLERS:
            council.say(sender, (0, 1, 2), received)
        if at % 5 == 4:
            council.run(0.05)
    council.run(0.5)

    assert all(not council.group(replica).challenges.evidence for replica in (0, 1, 2))
    ends = {council.group(replica).log.partition(Partition(T, 0)).end for replica in (0, 1, 2)}
    assert ends == {1}


@settings(max_examples=200)
@given(st.lists(syncs(), min_size=1, max_size=3))
def test_whatever_stands_in_a_sync_nothing_is_raised(heard: list[Sync]) -> None:
    council = Council(byzantine=(LIAR,))
    council.publish(A, 1)
    for sync in heard:
        council.say(LIAR, (0, 1, 2), as_received(sync))
        council.run(0.05)
    assert all(council.log(replica) in ([], [payload_of(A, 1)]) for replica in (0, 1, 2))


def test_a_crash_group_hears_what_was_not_meant_for_it() -> None:
    council = Council(CRASH)
    council.say(1, [0], as_received(StopData(GROUP, 2, b"", b"", [])))
    assert [report.kind for report in council.reports(by=0)] == ["rejected"]


TO_READERS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from([Entries, Chained, Absent]).flatmap(SPOKEN.__getitem__),
    ),
    max_size=25,
)


@settings(max_examples=300)
@given(TO_READERS)
def test_whatever_is_said_to_a_reader_nothing_is_raised(said: list[tuple[NodeId, Any]]) -> None:
    look, everybody = Outlook(), {0, 1, 2, 3}
    reader = Reading(topic({"protection": "byzantine", "order": "total"}), Partition(T, 0), 0,
                     look.outbox)  # fmt: skip
    reader.begin(everybody)
    for at, (sender, message) in enumerate(said):
        received = as_received(message)
        if isinstance(received, Entries):
            reader.on_entries(sender, received, everybody)
        elif isinstance(received, Chained):
            reader.on_chained(sender, received, everybody)
        elif isinstance(received, Absent):
            reader.on_absent(sender, received, everybody)
        look.at(at * 200_000)
        reader.tick(everybody)
    assert reader.position <= reader.received
