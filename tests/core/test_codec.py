"""The codec: every message comes back as it was, and no bytes from outside do any harm."""

from struct import Struct, pack
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from declared import messages
from frames import (
    check_comes_back,
    check_no_part_passes,
    check_outlives_its_buffer,
    check_refused_for_next_to_nothing,
    frame_of,
    handed_on,
    is_refusal,
    message_or_error,
    with_flipped_bits,
)
from quorate.core import codec
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.ids import Lane
from quorate.core.limits import (
    AUTHENTICATORS_MAX,
    BATCH_BYTES_MAX,
    CONTROL_BYTES_MAX,
    FRAME_BYTES_MAX,
    RUN_BATCHES_MAX,
)
from quorate.core.messages import (
    Ack,
    Authenticator,
    Echo,
    Fetch,
    Forward,
    Frontier,
    Link,
    Message,
    Misbehave,
    Omitted,
    Operation,
    Publish,
    ReadyVote,
    Reply,
    Request,
    Status,
    StatusQuery,
    StatusReport,
    Supply,
    Taken,
    Vouch,
)
from quorate.core.ordering import OrderMessage


def raw(report: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(report))


NODES = st.integers(0, 2**64 - 1)
TOPICS = st.integers(0, 2**32 - 1)
LANES = st.sampled_from(Lane)
SEQUENCES = st.integers(0, 2**64 - 1)
# The last of a run must have a number too.
FIRSTS = st.integers(0, 2**64 - 6)
PAYLOADS = st.lists(st.binary(max_size=30), min_size=1, max_size=5)
DIGESTS = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5)
TAGS = st.binary(min_size=16, max_size=16)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
LEAVES = st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS | st.binary(max_size=8)
TREES = st.recursive(
    LEAVES, lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(TEXTS, deeper, max_size=3)
)


def votes(kind: type[Vouch] | type[Echo] | type[ReadyVote]) -> st.SearchStrategy[Message]:
    return st.builds(kind, NODES, TOPICS, LANES, FIRSTS, DIGESTS)


SUPPLIES = st.lists(st.tuples(SEQUENCES, st.binary(max_size=30)), min_size=1, max_size=5)
MESSAGES: dict[type, st.SearchStrategy[Message]] = {
    **messages(get_args(OrderMessage)),
    Publish: st.builds(Publish, TOPICS, LANES, st.booleans(), FIRSTS, SEQUENCES, PAYLOADS),
    Forward: st.builds(Forward, NODES, TOPICS, LANES, st.booleans(), FIRSTS, PAYLOADS),
    Vouch: votes(Vouch),
    Echo: votes(Echo),
    ReadyVote: votes(ReadyVote),
    Link: st.builds(
        Link,
        publisher=NODES,
        topic=TOPICS,
        urgent=st.booleans(),
        first=FIRSTS,
        settled=SEQUENCES,
        chain=st.integers(0, 255),
        payloads=PAYLOADS,
        authenticators=st.lists(st.builds(Authenticator, NODES, NODES, TAGS), max_size=4),
    ),
    Fetch: st.builds(
        Fetch, NODES, TOPICS, LANES, st.booleans(), st.lists(SEQUENCES, min_size=1, max_size=5)
    ),
    Supply: st.builds(
        lambda publisher, topic, lane, pairs: Supply(
            publisher, topic, lane, [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        ),
        NODES,
        TOPICS,
        LANES,
        SUPPLIES,
    ),
    Frontier: st.builds(Frontier, NODES, TOPICS, LANES, SEQUENCES, SEQUENCES),
    Taken: st.builds(Taken, NODES, TOPICS, LANES, SEQUENCES),
    Omitted: st.builds(Omitted, NODES, TOPICS, LANES, FIRSTS, st.integers(1, 5)),
    Ack: st.builds(Ack, TOPICS, LANES, st.sampled_from(Status), SEQUENCES),
    Request: st.builds(
        Request,
        NUMBERS,
        st.sampled_from(Operation),
        TEXTS,
        TEXTS,
        st.booleans(),
        st.binary(max_size=8),
        st.dictionaries(TEXTS, st.binary(max_size=8), max_size=3),
    ),
    Reply: st.builds(Reply, NUMBERS, TEXTS),
    StatusQuery: st.builds(StatusQuery, NUMBERS),
    StatusReport: st.builds(
        StatusReport, NUMBERS, st.dictionaries(TEXTS, TREES, max_size=3).map(raw)
    ),
    Misbehave: st.builds(
        Misbehave,
        NUMBERS,
        TEXTS,
        FLOATS,
        st.lists(TEXTS, max_size=3),
        FLOATS,
        st.lists(TEXTS, max_size=3),
        FLOATS,
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
# There are many kinds, each with a few fields.
OF_EACH = settings(max_examples=50)


def test_every_message_there_is_has_a_strategy() -> None:
    assert set(MESSAGES) == set(get_args(Message))


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_a_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    check_comes_back(data.draw(MESSAGES[kind]))


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_a_message_outlives_the_buffer_that_it_came_in(kind: type, data: st.DataObject) -> None:
    check_outlives_its_buffer(data.draw(MESSAGES[kind]))


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_no_part_of_a_message_passes_for_a_message(kind: type, data: st.DataObject) -> None:
    check_no_part_passes(data.draw(MESSAGES[kind]))


@EVERY_KIND
@OF_EACH
@given(st.data())
def test_flipped_bits_make_a_message_or_a_protocol_error(kind: type, data: st.DataObject) -> None:
    found = message_or_error(with_flipped_bits(data.draw(MESSAGES[kind]), data))
    assert is_refusal(found) or type(found) in MESSAGES
    assert is_refusal(found) or type(handed_on(found)) is type(found)


@pytest.mark.parametrize("number", range(16))
@given(st.binary(max_size=120))
def test_random_bytes_of_every_kind_make_a_message_or_a_protocol_error(
    number: int, body: bytes
) -> None:
    found = message_or_error(bytes([number]) + body)
    assert is_refusal(found) or type(found) in MESSAGES
    assert is_refusal(found) or type(handed_on(found)) is type(found)


@given(st.binary(max_size=120))
def test_random_bytes_are_frames_or_a_protocol_error(received: bytes) -> None:
    try:
        found = list(codec.frames(memoryview(received)))
    except RemoteProtocolError as error:
        assert str(error)
    else:
        assert b"".join(pack("<I", len(frame)) + frame for frame in found) == received


@given(st.lists(st.sampled_from(sorted(MESSAGES, key=str)), min_size=1, max_size=5), st.data())
def test_frames_back_to_back_are_taken_apart_in_order(
    kinds: list[type], data: st.DataObject
) -> None:
    sent = [data.draw(MESSAGES[kind]) for kind in kinds]
    received = memoryview(b"".join(map(codec.encode, sent)))

    assert [codec.decode(frame) for frame in codec.frames(received)] == sent


# publisher, topic, lane, flag, count, first, settled
HEAD = Struct("<QIBBHQQ")
(
    PUBLISH, FORWARD, VOUCH, ECHO, READY, LINK, FETCH, SUPPLY, FRONTIER, TAKEN, OMITTED, ACK,
    CONTROL,
) = range(1, 14)  # fmt: skip
HUGE = 2**32 - 1


def head(kind: int, count: int, *, lane: int = 0, flag: int = 0, first: int = 0) -> bytes:
    return bytes([kind]) + HEAD.pack(1, 2, lane, flag, count, first, 0)


def control(before: Message, mark: bytes, forged: bytes) -> bytes:
    """A control message in which what follows `mark` is replaced."""
    frame = frame_of(before)
    return frame[: frame.index(mark) + len(mark)] + forged


FORGED = {
    "a run longer than allowed": head(PUBLISH, RUN_BATCHES_MAX + 1) + bytes(4),
    "a run longer than its message": head(FORWARD, RUN_BATCHES_MAX) + bytes(8),
    "a run of none": head(FORWARD, 0),
    "a payload of four gigabytes": head(PUBLISH, 1) + pack("<I", HUGE),
    "payloads that overflow together": head(SUPPLY, 2) + bytes(16) + pack("<II", HUGE, HUGE),
    "a payload over its bound": head(PUBLISH, 1) + pack("<I", BATCH_BYTES_MAX + 1),
    "votes that are not there": head(VOUCH, RUN_BATCHES_MAX),
    "echoes that are not there": head(ECHO, 3) + bytes(64),
    "readies beyond the last number": head(READY, 2, first=2**64 - 1) + bytes(64),
    "sequences that are not there": head(FETCH, RUN_BATCHES_MAX) + bytes(8),
    "authenticators beyond the bound": head(LINK, 1) + pack("<BH", 0, AUTHENTICATORS_MAX + 1),
    "authenticators that are not there": head(LINK, 1) + pack("<BH", 0, AUTHENTICATORS_MAX),
    "an unknown lane": head(FRONTIER, 0, lane=2),
    "an unknown status": head(ACK, 0, flag=len(Status)),
    "an omission of none": head(OMITTED, 0),
    "an omission beyond the last number": head(OMITTED, 2, first=2**64 - 1),
    "an omission longer than a run": head(OMITTED, RUN_BATCHES_MAX + 1),
    "an unknown kind": bytes([CONTROL + 1]) + bytes(HEAD.size),
    "an empty frame": b"",
    "a list of four billion": control(
        Misbehave(1, "x", fields=["a"]), b"fields", b"\xdd\xff\xff\xff\xff"
    ),
    "a map of four billion": control(
        Request(1, Operation.REGISTER, "t", "", headers={"a": b"b"}),
        b"headers",
        b"\xdf\xff\xff\xff\xff",
    ),
    "text of four gigabytes": control(Reply(1, "x"), b"sentence", b"\xdb\xff\xff\xff\xff"),
    "bytes of four gigabytes": control(
        Request(1, Operation.REGISTER, "t", "", key_prefix=b"a"),
        b"key_prefix",
        b"\xc6\xff\xff\xff\xff",
    ),
    "a report of four billion": control(
        StatusReport(1, raw({"mark": 1})), b"mark", b"\xdd\xff\xff\xff\xff"
    ),
    "a report nested without end": control(
        StatusReport(1, raw({"mark": 1})), b"mark", b"\x91" * 50_000
    ),
    "maps nested without end": control(
        StatusReport(1, raw({"mark": 1})), b"mark", b"\x81\xa1a" * 50_000
    ),
    "a control message of no type": bytes([CONTROL]) + msgspec.msgpack.encode({"number": 1}),
    "a control message that is a list": bytes([CONTROL]) + msgspec.msgpack.encode([1, 2]),
}


@pytest.mark.parametrize("frame", FORGED.values(), ids=FORGED)
def test_forged_counts_and_lengths_are_refused_and_allocate_next_to_nothing(frame: bytes) -> None:
    check_refused_for_next_to_nothing(frame, 200_000)


def test_a_frame_over_the_bound_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match="allowed are 1 to"):
        codec.decode(memoryview(bytes([PUBLISH]) + bytes(FRAME_BYTES_MAX)))
    with pytest.raises(RemoteProtocolError, match="allowed are up to"):
        codec.decode(memoryview(bytes([CONTROL]) + bytes(CONTROL_BYTES_MAX + 1)))


def test_messages_over_the_bound_are_refused_where_they_are_made() -> None:
    payload = bytes(BATCH_BYTES_MAX)
    with pytest.raises(LocalProtocolError, match="is over"):
        codec.encode(Publish(1, Lane.EVENTS, False, 0, 0, [payload, payload]))
    with pytest.raises(LocalProtocolError, match="is over the bound"):
        codec.encode(Reply(1, "x" * CONTROL_BYTES_MAX))


def test_what_does_not_fit_its_field_is_refused_where_it_is_made() -> None:
    for message in (Taken(1, 2, Lane.EVENTS, 2**64), Fetch(1, 2, Lane.EVENTS, True, [2**64])):
        with pytest.raises(LocalProtocolError, match=r"a (Taken|Fetch) that cannot be packed"):
            codec.encode(message)


def test_the_last_sequence_numbers_can_be_used() -> None:
    message = Vouch(1, 2, Lane.EVENTS, 2**64 - 2, [bytes(32), bytes(32)])

    assert codec.decode(memoryview(frame_of(message))) == message
