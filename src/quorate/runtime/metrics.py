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
                words = name.replace("_", " ")
                family = families[name] = kind(f"quorate_{name}", words, labels=list(labels))
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
