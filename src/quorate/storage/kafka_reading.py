"""Records on their way from Kafka, and those that came or were written lately.

What Kafka has just acknowledged is still in memory, and readers who are up to date are served from
there. For what is older, one thread goes where something is wanted and reads on from there, since
those who read a partition want most of what comes next: what the client library has fetched beyond
what is wanted is set aside until somebody wants it, or something else needs its place. A record is
kept if it has the digest of its pointer. One that is gone or altered is lost, and reported. When
Kafka does not answer, whoever waits is sent elsewhere, and for a moment nobody asks.
"""

import threading
import time
from collections import OrderedDict
from functools import partial
from typing import Any, TypeAlias

from quorate.crypto.digests import batch_digest
from quorate.storage.kafka_client import (
    CLOSE_SECONDS_MAX,
    POLL_S,
    REST_SECONDS,
    Listener,
    Memory,
    Place,
    Trouble,
    kafka_exception,
    made,
)
from quorate.storage.pointers import Pointer

# A fetch that brings nothing for so long is given up.
FETCH_SECONDS_MAX = 3.0
# After so long with nothing, Kafka is asked what it has.
LOOK_AFTER_SECONDS = 0.5
# A record that is gone or altered is looked for again after so long: somebody may have mended it.
LOST_SECONDS = 60.0
LOST_MAX = 65_536
# So much stays in memory of what was fetched, and of what was written.
FETCHED_BYTES_MAX = 64 * 1024 * 1024
WRITTEN_BYTES_MAX = 64 * 1024 * 1024
# So much is set aside that came before anybody wanted it; so much the client library fetches ahead,
# and if that is there it looks after so long whether it has been taken.
AHEAD_BYTES_MAX = 32 * 1024 * 1024
_QUEUED_BYTES_MAX = 4 * 1024 * 1024
_QUEUE_LOOK_MS = 5
# With nothing to fetch for so long, Kafka is asked for nothing any more.
IDLE_SECONDS = 1.0
# Reading on over so many records that nobody wants is quicker than going elsewhere.
_SKIPPED_MAX = 256
_FETCHED_AT_ONCE = 64

# A topic and partition of Kafka.
Target: TypeAlias = tuple[str, int]


class Reader:
    """Records on their way from Kafka, and those that came or were written lately."""

    def __init__(self, settings: dict[str, Any], listener: Listener, trouble: Trouble) -> None:
        self.fetched = self.lost = 0
        self._settings = settings
        self._listener = listener
        self._trouble = trouble
        self._lock = threading.Lock()
        self._something = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._wanted: dict[Target, dict[int, Pointer]] = {}
        self._fetched = Memory(FETCHED_BYTES_MAX)
        self._written = Memory(WRITTEN_BYTES_MAX)
        # What came and nobody has wanted yet: it was not held against any digest.
        self._ahead = Memory(AHEAD_BYTES_MAX)
        # Which are not to be had, and until when that counts.
        self._lost: OrderedDict[Place, float] = OrderedDict()
        # Until when nobody is asked, since nobody answered.
        self._resting_until = 0.0
        self._closed = False
        self._consumer = self._make_consumer()
        # Where the consumer reads, and which offset comes next.
        self._at: Target | None = None
        self._next = 0
        self._thread = threading.Thread(target=self._run, name="kafka fetches", daemon=True)
        self._thread.start()

    def found(self, place: Place) -> bytes | None:
        with self._lock:
            return self._written.get(place) or self._fetched.get(place)

    def keep_written(self, place: Place, payload: bytes) -> None:
        """Kafka has acknowledged this, and somebody is going to want it."""
        with self._lock:
            self._written.put(place, payload)

    def fetch(self, place: Place, pointer: Pointer) -> None:
        with self._lock:
            is_wanted = place.offset in self._wanted.get(place[:2], {})
            is_here = place in self._written or place in self._fetched
            hopeless_until = max(self._resting_until, self._lost.get(place, 0.0))
            if is_wanted or is_here or time.monotonic() < hopeless_until:
                return
            self._wanted.setdefault(place[:2], {})[place.offset] = pointer
            self._something.notify()

    def is_fetching(self, place: Place) -> bool:
        with self._lock:
            return place.offset in self._wanted.get(place[:2], {})

    def is_lost(self, place: Place) -> bool:
        """Whether Kafka said that it has no such record, or has another one there."""
        with self._lock:
            return self._lost.get(place, 0.0) > time.monotonic()

    def wait_for(self, place: Place, timeout_s: float) -> None:
        with self._lock:
            self._settled.wait_for(
                lambda: place.offset not in self._wanted.get(place[:2], {}), timeout_s
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._something.notify()
        self._thread.join(CLOSE_SECONDS_MAX)

    # In the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                patience_s = None if self._at is None else IDLE_SECONDS
                is_something = self._something.wait_for(
                    lambda: self._closed or bool(self._wanted), patience_s
                )
                if self._closed:
                    break
                target = next(iter(self._wanted), None)
            try:
                if not is_something:
                    # The client library would go on fetching what is written where we read last.
                    self._consumer.unassign()
                    self._at = None
                elif target is not None:
                    self._fetch(target)
            except (kafka_exception(), RuntimeError) as error:
                self._give_up(str(error))
        self._consumer.close()

    def _fetch(self, target: Target) -> None:
        """Everything that is wanted there, from the first offset on."""
        deadline = time.monotonic() + FETCH_SECONDS_MAX
        look_at = time.monotonic() + LOOK_AFTER_SECONDS
        if self._take_from_ahead(target):
            self._listener.post(self._listener.fetched)
        self._go_to(target)
        while (wanted := self._wanted_from(target, self._next)) and not self._closed:
            before, settled = self._next, 0
            for message in self._messages():
                settled += self._on_message(target, message)
                if self._at is None:
                    # What else came, came from where we read before.
                    break
            self._go_to(target)
            if not settled and time.monotonic() > look_at:
                # Not everything that is wrong is said of its own accord.
                look_at = deadline
                settled = self._look(target)
            if settled or self._next > before:
                deadline = time.monotonic() + FETCH_SECONDS_MAX
                look_at = time.monotonic() + LOOK_AFTER_SECONDS
                self._listener.post(self._listener.fetched)
            elif time.monotonic() > deadline:
                topic, partition = target
                self._give_up(f"it does not give out record {wanted[0]} of {topic}/{partition}")
                return
        self._set_aside(target)

    def _take_from_ahead(self, target: Target) -> int:
        """Says how many of those that are wanted had come before they were."""
        settled = 0
        for offset in self._wanted_from(target, 0):
            with self._lock:
                payload = self._ahead.pop(Place(*target, offset))
            if payload is not None:
                settled += self._check(target, offset, payload)
        return settled

    def _set_aside(self, target: Target) -> None:
        """What has come beyond what was wanted is wanted next, by whoever reads on."""
        if self._at == target:
            for message in self._consumer.consume(_FETCHED_AT_ONCE, 0):
                if self._at is not None:
                    self._on_message(target, message)

    def _go_to(self, target: Target) -> None:
        """Be where the first that is wanted comes next, or soon."""
        from confluent_kafka import TopicPartition

        wanted = self._wanted_from(target, 0)
        if not wanted:
            return
        skipped = wanted[0] - self._next
        if self._at != target or not 0 <= skipped <= _SKIPPED_MAX:
            self._consumer.assign([TopicPartition(*target, wanted[0])])
            self._at, self._next = target, wanted[0]

    def _make_consumer(self) -> Any:
        from confluent_kafka import Consumer

        return made(
            Consumer,
            {
                "queued.max.messages.kbytes": _QUEUED_BYTES_MAX // 1024,
                "fetch.queue.backoff.ms": _QUEUE_LOOK_MS,
                **self._settings,
                "group.id": "quorate",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
            },
        )

    def _wanted_from(self, target: Target, offset: int) -> list[int]:
        with self._lock:
            return sorted(each for each in self._wanted.get(target, {}) if each >= offset)

    def _messages(self) -> list[Any]:
        first = self._consumer.poll(POLL_S)
        return [] if first is None else [first, *self._consumer.consume(_FETCHED_AT_ONCE, 0)]

    def _on_message(self, target: Target, message: Any) -> int:
        """Says how many records are settled by it."""
        from confluent_kafka import KafkaError

        if (message.topic(), message.partition()) not in (target, (None, None)):
            return 0
        error = message.error()
        if error is None:
            return self._on_record(target, message.offset(), message.value() or b"")
        code = error.code()
        if code in (
            KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE
        ):  # fmt: skip
            # That it has nothing more may have been so a while ago only.
            return self._look(target)
        self._trouble.is_news(str(error.str()))
        return 0

    def _on_record(self, target: Target, offset: int, value: bytes) -> int:
        skipped = [each for each in self._wanted_from(target, self._next) if each < offset]
        settled = self._lose(target, skipped, "it is not there any more")
        self._next = offset + 1
        return settled + self._check(target, offset, value)

    def _check(self, target: Target, offset: int, value: bytes) -> int:
        """Keep a record that is wanted if it is what was written; says how many are settled."""
        place = Place(*target, offset)
        with self._lock:
            pointer = self._wanted.get(target, {}).get(offset)
            if pointer is None:
                if place not in self._written and place not in self._fetched:
                    self._ahead.put(place, value)
                return 0
        if len(value) != pointer.length or batch_digest(value) != pointer.digest:
            return self._lose(target, [offset], "it is not what was written there")
        with self._lock:
            self.fetched += 1
            self._settle(place)
            self._fetched.put(place, value)
        self._trouble.is_over()
        return 1

    def _look(self, target: Target) -> int:
        """See what there is, and lose what is not there; what is left is read from its place."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        self._at = None
        unknown = (
            KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        )  # fmt: skip
        wanted = self._wanted_from(target, 0)
        try:
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(*target), timeout=FETCH_SECONDS_MAX / 2
            )
        except KafkaException as error:
            if error.args[0].code() not in unknown:
                raise
            return self._lose(target, wanted, "there is no such partition")
        gone = [each for each in wanted if not low <= each < high]
        return self._lose(target, gone, "it is not there any more")

    def _lose(self, target: Target, offsets: list[int], why: str) -> int:
        for offset in offsets:
            with self._lock:
                self.lost += 1
                place = Place(*target, offset)
                self._settle(place)
                self._lost[place] = time.monotonic() + LOST_SECONDS
                self._lost.move_to_end(place)
                if len(self._lost) > LOST_MAX:
                    self._lost.popitem(last=False)
            words = f"record {offset} of {target[0]}/{target[1]} is lost: {why}"
            self._listener.post(partial(self._listener.report, words))
        return len(offsets)

    def _settle(self, place: Place) -> None:
        wanted = self._wanted.get(place[:2], {})
        wanted.pop(place.offset, None)
        if not wanted:
            self._wanted.pop(place[:2], None)
        self._settled.notify_all()

    def _give_up(self, words: str) -> None:
        """Nobody answers: whoever waits goes elsewhere for now."""
        self._at = None
        with self._lock:
            self._resting_until = time.monotonic() + REST_SECONDS
            self._wanted.clear()
            self._settled.notify_all()
        if self._trouble.is_news(words):
            self._listener.post(partial(self._listener.report, words))
        self._listener.post(self._listener.fetched)
