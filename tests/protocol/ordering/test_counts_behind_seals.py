"""A seal says how many events are in its batch, and the batch's own header has to agree."""

import pytest

from quorate.core import batch
from quorate.core.errors import RemoteProtocolError
from quorate.core.ids import topic_id
from quorate.core.ordering import Line
from quorate.crypto.digests import digest
from quorate.crypto.events import events_root
from quorate.crypto.identity import Identity
from quorate.crypto.sids import NO_ROOT, SALT_BYTES, Place, sealed
from quorate.protocol.ordering.validation import Validation
from stage import topic

ALICE = Identity.generate("alice")
PRODUCER = 1000
LINE = Line(PRODUCER, topic_id("t"), 0)


def sealed_batch(said: int, *, is_salted: bool) -> bytes:
    """Three events behind a seal that says so many."""
    payload = batch.encode_values([b"one", b"two", b"three"], 7)
    body, root = payload, NO_ROOT
    if is_salted:
        salt = bytes(SALT_BYTES)
        body, root = salt + payload, events_root(salt, batch.Batch(payload).events())
    return sealed(
        Place.of("local", "t", 0, PRODUCER), 1, body, events=said, time_us=7, root=root,
        public_key=ALICE.public.sign_key, sign=ALICE.sign,
    )  # fmt: skip


def check(payload: bytes, *, is_salted: bool) -> None:
    table = {"protection": "byzantine", "order": "total", "validated": True}
    validated = topic({**table, "event_proofs": is_salted})
    validation = Validation("local", [validated], {PRODUCER: ALICE.public.sign_key})
    validation.check_batches(LINE, 1, [payload], [digest(payload)])


@pytest.mark.parametrize("is_salted", [False, True])
def test_a_batch_with_as_many_events_as_its_seal_says_is_valid(is_salted: bool) -> None:
    check(sealed_batch(3, is_salted=is_salted), is_salted=is_salted)


@pytest.mark.parametrize("is_salted", [False, True])
@pytest.mark.parametrize("said", [2, 4])
def test_one_with_more_or_fewer_is_not(said: int, is_salted: bool) -> None:
    with pytest.raises(RemoteProtocolError, match="more or fewer events than its seal says"):
        check(sealed_batch(said, is_salted=is_salted), is_salted=is_salted)
