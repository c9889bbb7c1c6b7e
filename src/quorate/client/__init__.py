"""Producer, Consumer and Admin: what programs use.

    async with Producer("cluster", "alice") as producer:
        receipt = await producer.send("alerts", b"disk full", key=b"host-7")

    async with Consumer("cluster", "bob") as consumer:
        consumer.subscribe(["alerts"])
        async for record in consumer:
            print(record.value)

`BlockingProducer` and `BlockingConsumer` are the same for programs without an event loop. `Admin`
is for operators, and `Auditor` checks the whole history of a cluster.
"""

from quorate.client.admin import Admin
from quorate.client.audit import Auditor
from quorate.client.blocking import BlockingConsumer, BlockingProducer
from quorate.client.consumer import Consumer, Record
from quorate.client.producer import Producer, Receipt

__all__ = [
    "Admin",
    "Auditor",
    "BlockingConsumer",
    "BlockingProducer",
    "Consumer",
    "Producer",
    "Receipt",
    "Record",
]
