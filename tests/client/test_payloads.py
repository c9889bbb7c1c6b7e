"""Batches that a program has encoded itself: they are published as they are."""

import asyncio

import pytest

from quorate.client import Producer
from quorate.core import batch, header
from quorate.core.contract import Contract
from quorate.core.errors import LocalProtocolError
from quorate.runtime.local import make_local_cluster

VALIDATED = {"order": "total", "validated": True}
TOPICS = {
    "claims": Contract.parse("claims", VALIDATED),
    "votes": Contract.parse("votes", {**VALIDATED, "event_proofs": True}),
    "news": Contract.parse("news", {}),
}
# Nobody listens at the ports of its replicas.
LOCAL = make_local_cluster(base_port=1, topics=TOPICS)
GOOD = batch.encode_values([b"one", b"another"], 0)
SIGNED = GOOD[:1] + bytes([header.SIGNED]) + GOOD[2:]


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    ("payload", "events", "sentence"),
    [
        (b"junk", 1, "no batch to publish on .*: a batch of 4 bytes"),
        (SIGNED, 2, "no batch to publish on .*: it says that it is signed"),
        (GOOD, 3, "of 2 events, where 3 are said to be in it"),
    ],
)
def test_what_cannot_be_published_is_refused_and_the_next_batch_is_taken(
    monkeypatch: pytest.MonkeyPatch, topic: str, payload: bytes, events: int, sentence: str
) -> None:
    async def granted(*_: object, **__: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(Producer, "command", granted)
    monkeypatch.setattr(Producer, "_answer", granted)

    async def story() -> int:
        producer = Producer(LOCAL.cluster, LOCAL.identities["alice"])
        await producer.start()
        producer._is_current = True
        try:
            with pytest.raises(LocalProtocolError, match=sentence):
                await producer.submit_payload(topic, payload, events)
            await producer.submit_payload(topic, GOOD, 2)
            return len(producer._outlets[topic][0].sent)
        finally:
            await producer.close(flush=False)

    assert asyncio.run(story()) == 1
