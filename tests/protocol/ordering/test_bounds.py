"""What a Byzantine replica makes another one keep is bounded in bytes, not only in number."""

import pytest

from council import A, B, Council, T, payload_of, span_of, value_of
from quorate.core.control import CONTROL_TOPIC_ID
from quorate.core.header import DESCRIPTOR_BYTES
from quorate.core.ordering import Decision, Line, Retrieved
from quorate.crypto.digests import descriptor
from quorate.protocol.ordering import retrieval
from quorate.protocol.ordering.catching_up import DECISIONS_AHEAD_MAX, EARLY_BYTES_MAX
from quorate.protocol.ordering.value import SPAN_BATCHES_MAX, Span
from stage import described, event

LIAR = 3
LARGE = event(bytes(600))


def kept_bytes(council: Council) -> int:
    said = council.group(0).catching_up.said
    decisions = [decision for words in said.values() for decision in words.values()]
    return sum(
        len(each.value) + len(each.descriptors) + sum(map(len, each.commands)) for each in decisions
    )


@pytest.mark.parametrize("field", ["descriptors", "commands"])
def test_what_a_replica_says_of_slots_ahead_is_bounded_in_bytes(field: str) -> None:
    council = Council(byzantine=(LIAR,))
    size = EARLY_BYTES_MAX // 8
    of_descriptors, of_commands = (size // DESCRIPTOR_BYTES, T), (32, CONTROL_TOPIC_ID)
    batches, topic = of_descriptors if field == "descriptors" else of_commands
    commands = [] if field == "descriptors" else [bytes(size // 32)] * 32
    value = value_of(Span(A, topic, 0, 1, batches, bytes(32)))
    for slot in range(2, DECISIONS_AHEAD_MAX):
        decision = Decision(council.number, slot, value, described(b"") * batches, commands)
        council.say(LIAR, [0], decision)
    assert size < kept_bytes(council) <= EARLY_BYTES_MAX


def test_a_replica_that_repeats_itself_takes_no_more_room() -> None:
    council = Council(byzantine=(LIAR,))
    value = value_of(Span(A, CONTROL_TOPIC_ID, 0, 1, 128, bytes(32)))
    commands = [bytes(4048)] * 127
    descriptors = described(b"") * 128
    commands.append(bytes(EARLY_BYTES_MAX // 2 - len(value) - len(descriptors) - 127 * 4048))
    for slot in (*[2] * 20, 3):
        decision = Decision(council.number, slot, value, descriptors, commands)
        council.say(LIAR, [0], decision)
    assert kept_bytes(council) == EARLY_BYTES_MAX


def test_offers_are_bounded_in_bytes_and_the_descriptors_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrieval, "OFFERED_BYTES_MAX", 1000)
    council = Council(byzantine=(0, LIAR))
    # The leader names what nobody has been given.
    spans: list[Span] = [span_of(publisher, 1, LARGE) for publisher in (A, B)]
    for span in spans:
        council.group(1).retrieval.want(span)
    for publisher in (A, B):
        given = Retrieved(publisher, T, 0, 1, [descriptor(LARGE)], [LARGE])
        council.say(LIAR, [1], given)
    offers = [council.group(1).backlog.wanted[Line(each, T, 0)].offer for each in (A, B)]
    assert [offer and offer[0] for offer in offers] == [[descriptor(LARGE)]] * 2
    assert [offer and offer[1] for offer in offers] == [[LARGE], [None]]


def test_a_replica_that_lags_behind_still_comes_forward() -> None:
    council = Council(byzantine=(LIAR,))
    contents = [event(payload_of(A, number)) for number in range(1, 6)]
    batches = SPAN_BATCHES_MAX
    value, descriptors = value_of(Span(A, T, 0, 1, batches, bytes(32))), described(b"") * batches
    for slot in range(2, DECISIONS_AHEAD_MAX):
        council.say(LIAR, [0], Decision(council.number, slot, value, descriptors))
    assert kept_bytes(council) > EARLY_BYTES_MAX - len(descriptors) - len(value)
    before = b""
    for slot, content in enumerate(contents, 1):
        span = span_of(A, slot, content, before=before)
        before = span.chain
        for sender in (1, 2):
            council.say(
                sender, [0], Decision(council.number, slot, value_of(span), descriptor(content))
            )
    assert council.group(0).consensus.slot == 6
