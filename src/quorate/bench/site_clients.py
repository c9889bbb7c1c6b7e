"""Sites that look for scanners together, as a benchmark plays them: each is a client of its own.

A site publishes the packets of handshakes that it sees (`pipeline/data/sites.py`) on its topic when
they are due, and follows the blacklist. All of them are in one process, so that one clock says when
a scanner could be found, and when the last site knew.

Parent and child talk in lines (`quorate.bench.processes`): the child says "here" when every site
has said something, hears when to begin, and says what was `Listed`.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from quorate.bench.latencies import Latencies, summarise
from quorate.bench.processes import Parent, play
from quorate.bench.workload import meanwhile, until
from quorate.client import Consumer, Producer
from quorate.pipeline.data.found import Found
from quorate.pipeline.data.sites import HARD, Traffic

LINGER_MS = 20
LAST_SECONDS_MAX = 30.0


class SitesTask(msgspec.Struct, frozen=True, kw_only=True):
    """How many scan the sites, and for how long."""

    cluster: str
    blacklist: str
    scanners: int
    seconds: float
    seed: int = 1


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """Who was found, and how long it took from the moment on that makes a scanner of somebody
    until all sites knew."""

    packets: int
    scanners: int
    found: int
    wrong: int
    precision: float
    recall: float
    latencies: Latencies


async def look_for_scanners(parent: Parent, task: SitesTask) -> None:
    setting = replace(HARD, scanners=task.scanners)
    found, news = Found(setting.sites), asyncio.Event()
    async with AsyncExitStack() as stack:
        producers = {}
        for site in setting.sites:
            producers[site] = await stack.enter_async_context(
                Producer(task.cluster, site, linger_ms=LINGER_MS)
            )
            consumer = await stack.enter_async_context(Consumer(task.cluster, site))
            consumer.subscribe([task.blacklist])
            await consumer.subscribed()
            await stack.enter_async_context(meanwhile(_follow(site, consumer, found, news)))
            await producers[site].send(site, b"no packet, but something to begin with")
        parent.say("here")
        if await parent.hear() is None:
            return
        traffic = Traffic(setting, seed=task.seed, start_us=_now_us(), duration_s=task.seconds)
        found.truth = {name: at.published_us / 1e6 for name, at in traffic.crossings.items()}
        packets = await _publish(traffic, producers)
        await until(lambda: found.recall >= 1, news, LAST_SECONDS_MAX)
        parent.say(_listed(found, packets))
        await parent.hear()


async def _publish(traffic: Traffic, producers: dict[str, Producer]) -> int:
    packets = 0
    for packet in traffic:
        await asyncio.sleep(max(0.0, (packet.published_us - _now_us()) / 1e6))
        await producers[packet.site].submit(
            packet.site, packet.value, key=packet.key, timestamp_us=packet.time_us
        )
        packets += 1
    return packets


async def _follow(site: str, consumer: Consumer, found: Found, news: asyncio.Event) -> None:
    async for record in consumer:
        found.on_told(site, str(msgspec.json.decode(record.value)["source"]))
        news.set()


def _listed(found: Found, packets: int) -> Listed:
    took_ns = [round(found.after_s(name) * 1e9) for name in found.known]
    return Listed(
        packets=packets,
        scanners=len(found.truth),
        found=len(found.known),
        wrong=len(found.told.keys() - found.truth.keys()),
        precision=found.precision,
        recall=found.recall,
        latencies=summarise(took_ns),
    )


def _now_us() -> int:
    return time.time_ns() // 1000


if __name__ == "__main__":
    play(SitesTask, sites=look_for_scanners)
