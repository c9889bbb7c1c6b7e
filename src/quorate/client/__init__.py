"""Producer, Consumer, Prover and Admin: what programs use.

    async with Producer("cluster", "alice") as producer:
        receipt = await producer.send("alerts", b"disk full", key=b"host-7")

    async with Consumer("cluster", "bob") as consumer:
        consumer.subscribe(["alerts"])
        async for record in consumer:
            print(record.value)

    proof = await prove("cluster", "bob", "payments", 0, 4711)

`BlockingProducer`, `BlockingConsumer` and `BlockingProver` are the same for programs without an
event loop. `Admin` is for operators, and `Auditor` checks the whole history of a cluster.
"""

from quorate.client.admin import Admin
from quorate.client.audit import Auditor
from quorate.client.blocking import BlockingConsumer, BlockingProducer, BlockingProver
from quorate.client.consumer import Consumer, Record
from quorate.client.producer import Producer, Receipt
from quorate.client.proving import Prover, prove

__all__ = [
    "Admin",
    "Auditor",
    "BlockingConsumer",
    "BlockingProducer",
    "BlockingProver",
    "Consumer",
    "Producer",
    "Prover",
    "Receipt",
    "Record",
    "prove",
]
