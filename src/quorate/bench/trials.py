"""Which trials there are of validated topics (K10).

Source: Kabis 2023, section 4.1: three producers and one consumer, ten topics of which 0, 2, 5, 7
and 10 are validated, and events of growing size, against plain Kafka and against BFT-SMaRt,
"modified to transmit the event in plain instead of its SID".

    quorate    clients choose with `update_topology` which topics are validated; payloads go to
               f + 1 replicas, which keep them themselves (embedded) or in a Kafka cluster each
    whole      a Byzantine log that is not validated: every batch goes whole to every replica
    kafka      one broker, `acks=all`, through confluent-kafka, with its own batching

The headline is an experiment of its own, with batches that are made by hand (`headline_plan`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from quorate.bench.experiments import ORDERING, Experiment
from quorate.core.contract import Contract

TOPICS = 10
PRODUCERS = 3
REPLICAS = 4
VALIDATED = (0, 2, 5, 7, 10)
SIZES = (16, 64, 256, 1024, 4096, 16_384, 65_536)
SIZES_QUICK = (16, 256, 1024, 16_384)
VALIDATED_QUICK = (0, 2, 10)
VALIDATED_IN_KAFKA = (5, 10)
# Most targets are about events of this size.
TARGET_SIZE = 1024

QUORATE, WHOLE, KAFKA = "quorate", "whole payloads", "kafka"
EMBEDDED, KAFKA_STORES = "embedded", "kafka"

HEADLINE = "headline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measurement, and everything that decides it."""

    system: str = QUORATE
    store: str = EMBEDDED
    validated: int = 0
    event_bytes: int = TARGET_SIZE

    @property
    def title(self) -> str:
        return f"{self.curve}, events of {self.event_bytes:,} bytes"

    @property
    def curve(self) -> str:
        """What it has in common with the same trial of other sizes."""
        if self.system != QUORATE:
            return self.system
        stores = "" if self.store == EMBEDDED else ", Kafka stores"
        return f"{self.validated} of {TOPICS} validated{stores}"

    @property
    def part(self) -> str:
        """The word for such trials on the command line."""
        if self.system != QUORATE:
            return "kafka" if self.system == KAFKA else "whole"
        return "embedded" if self.store == EMBEDDED else "kafka-stores"

    @property
    def of_ten(self) -> int | None:
        """How many topics are validated, where somebody chooses that."""
        return self.validated if self.system == QUORATE else None

    @property
    def topics(self) -> list[str]:
        """The validated ones first."""
        return [f"topic-{number}" for number in range(TOPICS)]

    @property
    def validated_topics(self) -> list[str]:
        return self.topics[: self.validated]

    def contracts(self) -> dict[str, Contract]:
        """All topics can be validated; which ones are, producers and consumer choose."""
        validated = self.system == QUORATE
        log = {"protection": "byzantine", "order": "total", "validated": validated}
        return {name: Contract.parse(name, log) for name in self.topics}


def full_plan() -> list[Trial]:
    return [*_plan(SIZES, VALIDATED, dict.fromkeys(SIZES, VALIDATED_IN_KAFKA))]


def quick_plan() -> list[Trial]:
    """What the targets need."""
    return [*_plan(SIZES_QUICK, VALIDATED_QUICK, {TARGET_SIZE: [TOPICS]})]


def headline_plan() -> list[Experiment]:
    """All topics validated, batches made by hand: one topic, and ten."""
    one = Experiment(
        name=HEADLINE,
        protocol=ORDERING,
        events_per_batch=1000,
        fsync="always",
        validated=True,
    )
    return [one, replace(one, topics=TOPICS)]


def _plan(
    sizes: Iterable[int], validated: Iterable[int], in_kafka: Mapping[int, Iterable[int]]
) -> Iterable[Trial]:
    """What is compared is measured next to each other.

    Stores in Kafka keep what is validated: with nothing validated, they make no difference.
    """
    for size in sizes:
        for count in validated:
            yield Trial(validated=count, event_bytes=size)
        for count in in_kafka.get(size, ()):
            yield Trial(store=KAFKA_STORES, validated=count, event_bytes=size)
        yield Trial(system=WHOLE, event_bytes=size)
        yield Trial(system=KAFKA, event_bytes=size)
