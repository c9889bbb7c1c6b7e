"""The checkers of validated topics find what they are for, in records and in broken protocols."""

from collections.abc import Callable

import pytest

from quorate.core.errors import RemoteProtocolError
from quorate.core.header import SEAL_BYTES, count_of
from quorate.core.ids import NodeId, Sequence, topic_id
from quorate.core.ordering import Partition
from quorate.crypto.sids import Checked, Place, Seal, check_seal
from quorate.protocol.machine import Begun, Entry, Passed
from quorate.protocol.ordering import validation as validation_module
from quorate.protocol.ordering.lines import Waiting
from quorate.protocol.ordering.reading import Reading
from quorate.protocol.ordering.receipts import Receipting
from quorate.protocol.ordering.validation import Validation
from quorate.sim import validated_adversaries
from quorate.sim.campaign import run_seed
from quorate.sim.checkers import Conduct
from quorate.sim.order_checkers import Content, LogBatch, check_log
from quorate.sim.scenarios import Setting
from quorate.sim.sealing import CLUSTER, public_key
from quorate.sim.validated_adversaries import FORGERIES
from quorate.sim.validated_checkers import (
    VALIDATED_LIVENESS,
    VALIDATED_SAFETY,
    ValidatedRecord,
    described,
)
from seals import batch_of_values, sealed_batch

TOPIC = "events"
HERE = Partition(topic_id(TOPIC), 0)
CORRECT, HOSTILE = 1000, 1001
FIRST, SECOND = 2000, 2001
ORDER = [(CORRECT, 1), (HOSTILE, 1), (CORRECT, 2)]
ALL = (*VALIDATED_SAFETY, *VALIDATED_LIVENESS)


def payload_of(publisher: NodeId, sequence: Sequence) -> bytes:
    return sealed_batch(publisher, sequence, topic=TOPIC)


def entry(offset: int, publisher: NodeId, sequence: Sequence, payload: bytes) -> Entry:
    return Entry(HERE, offset, offset + count_of(payload), publisher, sequence, 0, payload, (0, 1))


def record_of(payloads: list[bytes], order: list[tuple[NodeId, Sequence]]) -> ValidatedRecord:
    """Two readers have read this, of which the first validates; two replicas have it on disk."""
    conducts = {CORRECT: Conduct.CORRECT, HOSTILE: Conduct.BYZANTINE}
    record = ValidatedRecord(
        conducts, (FIRST, SECOND), cluster=CLUSTER, names={HERE.topic: TOPIC},
        validated=frozenset((HERE.topic,)), validating=frozenset((FIRST,)),
        keys={node: public_key(node) for node in conducts},
    )  # fmt: skip
    for reader in record.readers:
        record.on_outcome(reader, Begun(HERE, 0))
    for offset, ((publisher, sequence), payload) in enumerate(zip(order, payloads, strict=True)):
        batch = LogBatch(publisher, HERE, sequence)
        if publisher == CORRECT:
            record.sealed[batch] = payload_of(publisher, sequence)
            record.published[batch] = batch_of_values(b"%d" % sequence)
            record.positions[batch] = offset
        for reader in record.readers:
            record.on_outcome(reader, entry(offset, publisher, sequence, payload))
        record.store(payload)
        for replica in (0, 1):
            log = record.logs.setdefault(replica, {}).setdefault(HERE, {})
            log[offset] = Content(publisher, sequence, described(payload))
    return record


def good_record(**changed: bytes) -> ValidatedRecord:
    payloads = [payload_of(*batch) for batch in ORDER]
    for name, payload in changed.items():
        payloads[int(name.removeprefix("at_"))] = payload
    return record_of(payloads, ORDER)


def violated(record: ValidatedRecord) -> set[str]:
    return {violation.checker for violation in check_log(record, ALL)}


def sentences(record: ValidatedRecord) -> set[str]:
    return {violation.sentence.partition(", ")[2] for violation in check_log(record, ALL)}


def test_a_good_run_violates_nothing() -> None:
    assert check_log(good_record(), ALL) == []


# What a hostile producer got read by everybody, and what is wrong with it.
REPUDIABLE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a forged signature": (
        lambda: _flipped(payload_of(HOSTILE, 1), SEAL_BYTES - 1),
        "which its producer did not sign for that place",
    ),
    "signed for another number": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, signed_as=2),
        "which its producer did not sign for that place",
    ),
    "signed for another topic": (
        lambda: sealed_batch(HOSTILE, 1, topic="other"),
        "which its producer did not sign for that place",
    ),
    "signed for another partition": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, place={"partition": 1}),
        "which its producer did not sign for that place",
    ),
    "signed in another session": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, place={"session": 1}),
        "which its producer did not sign for that place",
    ),
    "signed for another cluster": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, place={"cluster": "other"}),
        "which its producer did not sign for that place",
    ),
    "another key": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, key=1),
        "which another key signed",
    ),
    "somebody else's batch": (lambda: payload_of(CORRECT, 1), "which another key signed"),
    "another body": (
        lambda: payload_of(HOSTILE, 1)[:-1] + b"?",
        "whose body is not what its seal names",
    ),
    "a tree": (
        lambda: sealed_batch(HOSTILE, 1, topic=TOPIC, root=b"r" * 32),
        "which has a tree of events where there is to be none, or none",
    ),
}


def _flipped(payload: bytes, at: int) -> bytes:
    return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


@pytest.mark.parametrize("what", REPUDIABLE)
def test_what_nobody_can_be_held_to_is_found_at_readers_and_replicas(what: str) -> None:
    make, sentence = REPUDIABLE[what]
    record = good_record(at_1=make())
    assert "non repudiation" in violated(record)
    assert sentence in sentences(record)

    record.read.clear()
    assert any(violation.sentence.startswith("replica 0") for violation in check_log(record, ALL))


def test_a_producer_that_is_shown_to_have_signed_what_it_did_not_is_found() -> None:
    """As if its key had signed behind its back."""
    other = sealed_batch(CORRECT, 1, batch_of_values(b"other"), topic=TOPIC)
    record = good_record(at_0=other)
    assert violated(record) == {"non repudiation", "integrity"}
    assert "which is not what that producer sealed" in sentences(record)


def with_basic() -> ValidatedRecord:
    """The hostile producer published a basic batch of two events; what follows is signed."""
    record = record_of([payload_of(CORRECT, 1)], ORDER[:1])
    basic, after = batch_of_values(b"1", b"2"), payload_of(CORRECT, 2)
    batch = LogBatch(CORRECT, HERE, 2)
    record.sealed[batch] = record.published[batch] = after
    record.positions[batch] = 3
    for payload in (basic, after):
        record.store(payload)
    for log in record.logs.values():
        log[HERE][1] = Content(HOSTILE, 1, described(basic))
        log[HERE][3] = Content(CORRECT, 2, described(after))
    record.on_outcome(FIRST, Passed(HERE, 3))
    record.on_outcome(SECOND, entry(1, HOSTILE, 1, basic))
    for reader in record.readers:
        record.on_outcome(reader, entry(3, CORRECT, 2, after))
    return record


def test_who_validates_passes_over_basic_batches_and_who_does_not_reads_them() -> None:
    assert check_log(with_basic(), ALL) == []


def test_a_reader_that_validates_and_delivers_a_basic_batch_is_found() -> None:
    record = with_basic()
    record.read[FIRST][HERE] = [*record.read[SECOND][HERE]]
    record.passed.clear()
    assert violated(record) == {"non repudiation"}
    assert sentences(record) == {"which has no seal"}


def test_a_reader_that_does_not_validate_and_passes_over_a_basic_batch_is_found() -> None:
    record = with_basic()
    del record.read[SECOND][HERE][1]
    assert violated(record) == {"total order"}


def test_a_reader_that_passes_over_a_signed_batch_is_found() -> None:
    record = good_record()
    del record.read[FIRST][HERE][1]
    assert violated(record) == {"total order", "same events"}


def test_a_log_in_which_a_number_is_left_out_or_comes_twice_is_found() -> None:
    for numbers in ((1, 3), (2, 1), (1, 1)):
        order = [(HOSTILE, number) for number in numbers]
        record = record_of([payload_of(*batch) for batch in order], order)
        record.read.clear()
        assert "producers order" in violated(record)


def test_a_log_that_began_later_is_in_order_from_there_on() -> None:
    record = good_record()
    for log in record.logs.values():
        del log[HERE][0]
    assert violated(record) == set()
    record.logs[0][HERE][3] = record.logs[0][HERE][2]
    assert {"producers order", "no duplicate"} <= violated(record)


def test_a_reader_that_does_not_come_to_the_end_is_blocked() -> None:
    record = good_record()
    payload = payload_of(HOSTILE, 2)
    record.logs[0][HERE][3] = Content(HOSTILE, 2, described(payload))
    assert violated(record) == {"no blocking"}


# Protocols that are wrong


def look_at_no_seals(patch: pytest.MonkeyPatch) -> None:
    """Replicas take what they are given. Readers look."""
    for name in ("check_seals", "check_batches"):
        patch.setattr(Validation, name, lambda *_: None)


def look_at_nothing(patch: pytest.MonkeyPatch) -> None:
    look_at_no_seals(patch)
    patch.setattr(Validation, "check_ordered", lambda *_: None)


def take_any_number(patch: pytest.MonkeyPatch) -> None:
    """A signature under one of the last numbers is as good: what was taken once is taken again."""

    def careless(place: Place, sequence: Sequence, seal: Seal, checked: Checked) -> None:
        for number in range(max(0, sequence - 4), sequence + 1):
            try:
                check_seal(place, number, seal, checked)
            except RemoteProtocolError:
                continue
            return
        raise RemoteProtocolError("a forgery")

    patch.setattr(validation_module, "check_seal", careless)


def take_any_key(patch: pytest.MonkeyPatch) -> None:
    """Whatever key is in the seal will do."""

    class Anybody(dict[int, bytes]):
        def get(self, *_: object) -> "AnyKey":  # type: ignore[override]
            return AnyKey()

    class AnyKey:
        def __eq__(self, _: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    check = Validation.check_seals

    def careless(self: Validation, *given: object) -> None:
        self._keys = Anybody()
        check(self, *given)  # type: ignore[arg-type]

    patch.setattr(Validation, "check_seals", careless)


def pass_over_everything(patch: pytest.MonkeyPatch) -> None:
    """Who validates delivers nothing at all."""
    patch.setattr(Reading, "_is_signed", lambda self, *_: self.validation is None)


def count_on_seals(patch: pytest.MonkeyPatch) -> None:
    """What was announced counts as stored."""
    patch.setattr(Waiting, "is_available", lambda *_: True)
    patch.setattr(Waiting, "claimed_through", lambda _, last, __: last)


def look_at_no_receipts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Receipting, "_holds", lambda *_: True)


Mutate = Callable[[pytest.MonkeyPatch], None]
# Who attacks, with which forgeries, in which seeds, and who has or delivers what nobody signed, or
# which other checker finds it. The first seeds show it; should seeds come to mean something else,
# one of the others will.
MUTATIONS: dict[str, tuple[Mutate, str, tuple[str, ...], range, str]] = {
    "replicas that do not look at seals": (
        look_at_no_seals, "forging-source", (), range(30), "replica",
    ),
    "replicas and readers that do not": (
        look_at_nothing, "forging-source", (), range(30), "reader",
    ),
    "a signature that counts for other numbers": (
        take_any_number, "forging-source", ("replayed",), range(30), "replica",
    ),
    "a key that is not pinned": (
        take_any_key, "forging-source", ("strange-key",), range(30), "replica",
    ),
    "signed batches that are passed over": (
        pass_over_everything, "none", (), range(30), "total order",
    ),
    "payloads that nobody has": (
        count_on_seals, "unstored-source", (), range(30), "no blocking",
    ),
    "receipts that nobody looks at": (
        look_at_no_receipts, "false-receipts", (), range(30), "receipts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_protocols_that_are_wrong_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, adversary, forgeries, seeds, expected = MUTATIONS[name]
    mutate(monkeypatch)
    if forgeries:
        some = {kind: FORGERIES[kind] for kind in forgeries}
        monkeypatch.setattr(validated_adversaries, "FORGERIES", some)
    setting = Setting("validated", adversary=adversary)
    found = (violation for seed in seeds for violation in run_seed(setting, seed).violations)
    is_repudiable = "non repudiation"
    assert any(
        violation.checker == expected
        or (violation.checker == is_repudiable and violation.sentence.startswith(expected))
        for violation in found
    )
