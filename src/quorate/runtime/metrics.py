"""Prometheus metrics of one replica, on a small HTTP port of its own.

Scraping reads what the replica counts anyway; nothing is counted twice for it.
"""

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

REQUEST_BYTES_MAX = 8192
REQUEST_SECONDS_MAX = 5.0

# What a person reads beside each metric.
WORDS = {
    "up_seconds": "How long this replica has been running.",
    "memory_bytes": "Resident memory of its process.",
    "links": "Replicas and clients that are connected.",
    "batches_in_total": "Batches that publishers or other replicas brought.",
    "dropped_frames_total": "Frames dropped because their peer did not read.",
    "internal_errors_total": "Errors of our own making. Should be 0: please report them.",
    "queued_events": "Events that wait for subscribers, over all of them.",
    "longest_queue_events": "Events that wait for the subscriber that is furthest behind.",
    "subscribers": "Sessions that subscribe to the topic here.",
    "publishers": "Sessions that publish on the topic here.",
    "offered_events_total": "Events put into queues, once per subscriber.",
    "discarded_events_total": "Events dropped because a queue was full, as the contract says.",
    "expired_events_total": "Events dropped because they waited longer than the contract allows.",
    "disk_full": "1 while there is no room on the disk, and so nothing is acknowledged.",
    "log_batches": "Batches that the order log has.",
    "log_signed_batches": "Batches that its last checkpoint covers, with a quorum's signatures.",
    "log_missing_events": "Events of the log whose payloads are yet to be fetched from others.",
    "log_regency": "How many leaders the order log has had.",
    "log_stopped": "1 if this replica is silent in the log's group, since it cannot go on there.",
    "store_in_trouble": "1 while the Kafka that this replica has as its store does not answer.",
    "store_written_total": "Payloads that it has acknowledged.",
    "store_refused_total": "Payloads that it has not acknowledged in time, or not at all.",
    "store_fetched_total": "Payloads that were read from it, as they were written.",
    "store_lost_total": "Payloads that it has acknowledged, and has no more or has altered.",
    "offences_total": "What members did that no correct one does.",
}

Sample = tuple[str, dict[str, str], float]


class ReplicaCollector(Collector):
    """Turns samples (name, labels, value) into metric families when scraped."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for name, labels, value in self._samples():
            family = families.get(name)
            if family is None:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = kind(f"quorate_{name}", WORDS[name], labels=list(labels))
                families[name] = family
            family.add_metric(list(labels.values()), value)  # type: ignore[attr-defined]
        return families.values()


async def serve_metrics(
    host: str, port: int, samples: Callable[[], Iterable[Sample]]
) -> asyncio.Server:
    """Answer GET /metrics, and nothing else."""
    registry = CollectorRegistry()
    registry.register(ReplicaCollector(samples))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(request, registry))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=REQUEST_BYTES_MAX)


def _response(request: bytes, registry: CollectorRegistry) -> bytes:
    if not request.startswith((b"GET /metrics ", b"GET / ")):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    body = generate_latest(registry)
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE_LATEST}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
