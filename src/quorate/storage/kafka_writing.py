"""Payloads on their way to Kafka.

A payload is taken when all in-sync replicas of the Kafka cluster have it. What is not acknowledged
in time was not taken, even if it turns up in Kafka later: then nobody points to it. Topics that are
missing are made first, and what is for them waits for that, within a bound.
"""

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from quorate.core.ids import member_of, session_of
from quorate.protocol.ordering.records import Deposit, Deposited
from quorate.storage.kafka_client import (
    CLOSE_SECONDS_MAX,
    MESSAGE_BYTES_MAX,
    POLL_S,
    REQUEST_SECONDS_MAX,
    REST_SECONDS,
    Listener,
    Place,
    Trouble,
    kafka_exception,
    made,
    make_topics,
)
from quorate.storage.pointers import Pointer, Pointers

# What Kafka has not acknowledged after so long was not taken.
WRITE_SECONDS_MAX = 5.0
# So much may wait to be acknowledged; more is not taken.
WRITING_BYTES_MAX = 64 * 1024 * 1024


class Writer:
    """Payloads on their way to Kafka."""

    def __init__(
        self,
        settings: dict[str, Any],
        pointers: Pointers,
        listener: Listener,
        trouble: Trouble,
        keep: Callable[[Place, bytes], None],
    ) -> None:
        """`keep` is called with what Kafka has acknowledged, before anybody else hears of it."""
        self._keep = keep
        self.written = self.refused = 0
        self._settings = settings
        self._pointers = pointers
        self._listener = listener
        self._trouble = trouble
        self._lock = threading.Lock()
        # What became of deposits and the event loop has yet to hear of.
        self._results: list[Deposited] = []
        # Topics that are known to be there, and what waits for others.
        self._made: set[str] = set()
        self._unmade: dict[str, list[Deposit]] = {}
        self._unmade_bytes = 0
        self._wanted: dict[str, int] = {}
        self._something_wanted = threading.Condition(self._lock)
        self._closed = False
        self._producer = self._make_producer()
        self._threads = [
            threading.Thread(target=self._deliver, name="kafka deliveries", daemon=True),
            threading.Thread(target=self._make_topics, name="kafka topics", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def prepare(self, topic: str, partitions: int) -> None:
        """Have this topic, with so many partitions at least."""
        with self._lock:
            if topic not in self._made or self._wanted.get(topic, 0) < partitions:
                self._wanted[topic] = partitions
                self._something_wanted.notify()

    def write(self, topic: str | None, deposit: Deposit) -> None:
        with self._lock:
            is_made = topic in self._made
            if topic is not None and not is_made:
                self._unmade_bytes += len(deposit.payload)
                if self._unmade_bytes <= WRITING_BYTES_MAX:
                    self._unmade.setdefault(topic, []).append(deposit)
                    return
                self._unmade_bytes -= len(deposit.payload)
        if topic is None or not is_made:
            self._settle(deposit, b"")
        else:
            self._produce(topic, deposit)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._something_wanted.notify()
        for thread in self._threads:
            # One that waits for an answer of Kafka ends with the process.
            thread.join(CLOSE_SECONDS_MAX)

    # Parts

    def _make_producer(self) -> Any:
        from confluent_kafka import Producer

        return made(
            Producer,
            {
                "linger.ms": 2,
                "queue.buffering.max.kbytes": WRITING_BYTES_MAX // 1024,
                **self._settings,
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "acks": "all",
                "enable.idempotence": True,
                "delivery.timeout.ms": int(WRITE_SECONDS_MAX * 1000),
                "error_cb": self._on_error,
            },
        )

    def _produce(self, topic: str, deposit: Deposit) -> None:
        whose = (member_of(deposit.publisher), session_of(deposit.publisher), deposit.sequence)
        try:
            self._producer.produce(
                topic,
                value=deposit.payload,
                key=b"%d.%d.%d" % whose,
                headers=[
                    (f"quorate-{name}", b"%d" % number)
                    for name, number in zip(("producer", "session", "sequence"), whose, strict=True)
                ],
                partition=deposit.partition,
                on_delivery=partial(self._on_delivery, topic, deposit),
            )
        except (BufferError, kafka_exception()) as error:
            self._fail(deposit, "its queue is full" if isinstance(error, BufferError) else error)

    def _on_delivery(self, topic: str, deposit: Deposit, error: Any, message: Any) -> None:
        offset = message.offset()
        if error is not None or offset is None or offset < 0:
            self._fail(deposit, error)
            return
        self._trouble.is_over()
        self._keep(Place(topic, deposit.partition, offset), deposit.payload)
        pointer = Pointer(offset, len(deposit.payload), deposit.digest)
        self._settle(deposit, self._pointers.encode(pointer))

    def _fail(self, deposit: Deposit, why: object) -> None:
        self._refuse_words(f"a batch was not taken: {why}")
        self._settle(deposit, b"")

    def _refuse_words(self, words: str) -> None:
        if self._trouble.is_news(words):
            self._listener.post(partial(self._listener.report, words))

    def _settle(self, deposit: Deposit, pointer: bytes) -> None:
        result = Deposited(
            deposit.publisher, deposit.topic, deposit.partition, deposit.sequence, pointer
        )
        with self._lock:
            self.written += bool(pointer)
            self.refused += not pointer
            self._results.append(result)
            is_first = len(self._results) == 1
        if is_first:
            self._listener.post(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            results, self._results = self._results, []
        if results:
            self._listener.deposited(results)

    def _on_error(self, error: Any) -> None:
        self._refuse_words(str(error.str()))
        if error.fatal():
            # Such a producer sends nothing more; what it had is reported as not delivered.
            self._producer = self._make_producer()

    def _deliver(self) -> None:
        while not self._closed:
            self._producer.poll(POLL_S)

    def _make_topics(self) -> None:
        """Until all are there, and then as new ones are wanted."""
        while True:
            with self._lock:
                self._something_wanted.wait_for(lambda: self._closed or self._unprepared())
                if self._closed:
                    return
                wanted = self._unprepared()
            failed = make_topics(self._settings, wanted) or self._unready(wanted)
            for topic, partitions in wanted.items():
                if topic not in failed:
                    self._begin_with(topic, partitions)
            for topic, why in failed.items():
                self._refuse_words(f"topic {topic} cannot be made: {why}")
                for deposit in self._taken_waiting(topic):
                    self._settle(deposit, b"")
            if failed:
                with self._lock:
                    self._something_wanted.wait(REST_SECONDS)
            else:
                self._trouble.is_over()

    def _unprepared(self) -> dict[str, int]:
        wanted = self._wanted.items()
        return {topic: partitions for topic, partitions in wanted if topic not in self._made}

    def _unready(self, topics: Iterable[str]) -> dict[str, str]:
        """Have the producer know where topics are: their first batches are not to wait for that.

        Says why it does not know of those of which it could not be told.
        """
        failed: dict[str, str] = {}
        for topic in topics:
            try:
                self._producer.list_topics(topic, timeout=REQUEST_SECONDS_MAX)
            except kafka_exception() as error:
                failed[topic] = str(error)
        return failed

    def _begin_with(self, topic: str, partitions: int) -> None:
        with self._lock:
            if self._wanted[topic] > partitions:
                return
            self._made.add(topic)
        for deposit in self._taken_waiting(topic):
            self._produce(topic, deposit)

    def _taken_waiting(self, topic: str) -> list[Deposit]:
        with self._lock:
            waiting = self._unmade.pop(topic, [])
            self._unmade_bytes -= sum(len(deposit.payload) for deposit in waiting)
        return waiting
