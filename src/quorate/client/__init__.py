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

What is asked for is imported when it is: a replica, a command and a worker of Spark each need a
few of these, and start sooner without the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Admin": "admin",
    "Auditor": "audit",
    "BlockingConsumer": "blocking",
    "BlockingProducer": "blocking",
    "BlockingProver": "blocking",
    "Consumer": "consumer",
    "Producer": "producer",
    "Prover": "proving",
    "Receipt": "producer",
    "Record": "consumer",
    "prove": "proving",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
