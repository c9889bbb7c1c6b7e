"""One replica as a process: the broker machine, its links, its metrics, its log.

`python -m quorate.runtime.replica --cluster FILE --name r0 --key FILE --data DIR` runs one; the
`quorate` command and the launcher start it like that.
"""

import argparse
import asyncio
import logging
import os
import random
import resource
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from quorate.core.cluster import Client, Cluster, Replica
from quorate.core.errors import ConfigError, QuorateError
from quorate.core.ids import NodeId, member_of
from quorate.core.messages import Misbehave, Reply, StatusQuery, StatusReport
from quorate.crypto.identity import Identity, public_of
from quorate.protocol.broker import Broker
from quorate.protocol.channel import Channel
from quorate.protocol.machine import Outcome, Report, Topology
from quorate.protocol.ordering.placement import GroupKind
from quorate.runtime.driver import Driver
from quorate.runtime.files import read_cluster, read_founding, read_identity
from quorate.runtime.founding import check_mark, compare, write_mark
from quorate.runtime.keeper import LogKeeper
from quorate.runtime.loop import run
from quorate.runtime.metrics import Sample, serve_metrics
from quorate.runtime.misbehaving import describe, wrapper_for
from quorate.runtime.topics import client_names, macs_of, topics_of
from quorate.runtime.transport import Transport

SAMPLE_EVERY_S = 1.0
OFFENDERS_SHOWN = 20
QUEUES_SHOWN = 20
LOGGED_PER_SECOND_MAX = 5

_log = logging.getLogger("quorate.replica")


class Offences:
    """Who did what no correct member does: counted for metrics, logged within a rate."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.counts: Counter[tuple[str, str]] = Counter()
        self.last: deque[str] = deque(maxlen=OFFENDERS_SHOWN)
        self._logged = 0
        self._logged_at = 0.0

    def note(self, node: NodeId | None, kind: str, sentence: str) -> None:
        who = "stranger" if node is None else self.cluster.name_of(node)
        self.counts[who, kind] += 1
        self.last.append(f"{who}: {kind}: {sentence}")
        second = time.monotonic() // 1
        if second != self._logged_at:
            self._logged, self._logged_at = 0, second
        self._logged += 1
        if self._logged <= LOGGED_PER_SECOND_MAX:
            _log.warning("%s: %s: %s", who, kind, sentence)


class ReplicaProcess:
    """Everything that one replica is made of."""

    def __init__(self, cluster: Cluster, founding: Cluster, identity: Identity, data: Path) -> None:
        me = cluster.named(identity.public.name)
        if not isinstance(me, Replica):
            raise ConfigError(f"{me.name} is a client of cluster {cluster.name}, not a replica")
        self.cluster, self.me = cluster, me
        self._identity = identity
        self._macs = macs_of(cluster, identity)
        topics = topics_of(cluster)
        self.keeper: LogKeeper | None = None
        if LogKeeper.is_needed(cluster, me.number, topics):
            self.keeper = LogKeeper(cluster, founding, me.number, identity, topics, data)
        self.broker = Broker(
            me.number,
            topics,
            client_names(cluster),
            self._macs,
            self.keeper.make_ordering if self.keeper is not None else None,
        )
        self._until: asyncio.Event | None = None
        self._disk_error: Exception | None = None
        self.offences = Offences(cluster)
        self.misbehaviour = "none"
        self._rates: dict[str, float] = {}
        self._started = time.monotonic()
        self._driver = Driver(
            self.broker,
            on_outcomes=self._on_outcomes,
            on_report=self._on_report,
            on_offence=self._on_offence,
            handlers={StatusQuery: self._on_status, Misbehave: self._on_misbehave},
            name_of=cluster.name_of,
            disk=self.keeper.store if self.keeper is not None else None,
            on_disk_error=self._on_disk_error,
            on_refused=self._on_refused,
            on_deposit=self.keeper.outside.deposit if self.keeper is not None else None,
        )
        if self.keeper is not None:
            self.keeper.outside.attach(self._driver, self.broker, self._on_store_trouble)
        self._transport = Transport(cluster, identity, self._driver)
        if self.broker.ordering is not None and self.broker.ordering.steward is not None:
            self._adopt(self.broker.ordering.steward.control.cluster)

    async def run(self, until: asyncio.Event) -> None:
        """Serve until then, or until the disk fails, which is an error."""
        self._until = until
        # Whoever finds our port open finds everything else, too.
        metrics = None
        if self.me.metrics_port is not None:
            metrics = await serve_metrics(self.me.host, self.me.metrics_port, self._samples)
        await self._transport.listen(self.me.host, self.me.port)
        # Of two replicas, the one with the higher number dials.
        for replica in self.cluster.replicas[: self.me.number]:
            self._transport.dial(replica.number)
        self._driver.start(self._transport)
        sampler = asyncio.create_task(self._sample_rates())
        keeping = asyncio.create_task(self.keeper.keep(self.broker)) if self.keeper else None
        if keeping is not None:
            keeping.add_done_callback(self._on_keeper_end)
        _log.info("%s listens on %s:%s", self.me.name, self.me.host, self.me.port)
        await until.wait()
        sampler.cancel()
        if keeping is not None:
            keeping.cancel()
        if metrics is not None:
            metrics.close()
        self._driver.stop()
        await self._transport.close()
        if self.keeper is not None:
            self.keeper.close()
        if self._disk_error is not None:
            raise self._disk_error

    def _on_keeper_end(self, keeping: "asyncio.Task[None]") -> None:
        error = None if keeping.cancelled() else keeping.exception()
        if isinstance(error, Exception):
            self._on_disk_error(error)

    def _on_disk_error(self, error: Exception) -> None:
        """What cannot be written cannot be promised: better to stop than to lie."""
        _log.critical("%s stops, since its disk failed: %s", self.me.name, error)
        self._disk_error = error
        if self._until is not None:
            self._until.set()

    def _on_refused(self, group: int, sentence: str) -> None:
        ordering = self.broker.ordering
        if ordering is not None and group in ordering.groups:
            ordering.groups[group].stop(f"the disk refused a record: {sentence}")

    # What others may ask

    def _on_status(self, peer: NodeId, query: StatusQuery) -> None:
        report = msgspec.Raw(msgspec.msgpack.encode(self.status()))
        self._driver.send(peer, StatusReport(query.number, report))

    def _on_misbehave(self, peer: NodeId, order: Misbehave) -> None:
        self._driver.send(peer, Reply(order.number, self._misbehave(peer, order)))

    def _misbehave(self, peer: NodeId, order: Misbehave) -> str:
        client = self.cluster.member(member_of(peer))
        if not self.cluster.allow_misbehaviour:
            return "this cluster's file does not say allow_misbehaviour = true"
        if not isinstance(client, Client) or not client.operator:
            return f"{client.name} is not an operator of this cluster"
        if order.behaviour == "clock" and self.keeper is None:
            return f"{self.me.name} keeps no log topic, and nothing else looks at its clock"
        try:
            self._driver.rewrite = wrapper_for(order, self.cluster, self.me.number, random.Random())
        except QuorateError as error:
            return str(error)
        if self.keeper is not None:
            wrong = order.ahead_s if order.behaviour == "clock" else 0.0
            self.keeper.clock_ahead_us = int(wrong * 1e6)
        self.misbehaviour = describe(order)
        _log.warning("misbehaving on purpose from now on: %s", self.misbehaviour)
        return ""

    def status(self) -> dict[str, object]:
        return {
            "name": self.me.name,
            "party": self.me.party,
            "health": self._health(),
            "misbehaviour": self.misbehaviour,
            "uptime_s": round(time.monotonic() - self._started, 1),
            "regency": self._regency(),
            "log": self.keeper.status(self.broker) if self.keeper is not None else None,
            "disk": self._driver.disk_full,
            "store": self._store_trouble(),
            "memory_mb": round(memory_bytes() / 1e6, 1),
            "processor_s": round(time.process_time(), 2),
            "links": len(self._driver.connected_peers),
            "rates": {name: round(rate, 1) for name, rate in self._rates.items()},
            "topics": {
                served.scope.topic.name: {
                    "publishers": len(served.scope.channel.publishers),
                    "subscribers": len(served.scope.channel.outlets),
                    "queued_events": served.scope.channel.depth_events,
                    "pushing_back": len(served.scope.withheld),
                    "discarded": served.scope.channel.counters["discarded"],
                    "expired": served.scope.channel.counters["expired"],
                }
                for served in self.broker.topics.values()
            },
            "queues": {
                served.scope.topic.name: dict(queues.most_common(QUEUES_SHOWN))
                for served in self.broker.topics.values()
                if (queues := self._queues(served.scope.channel))
            },
            "rejected": sum(self.offences.counts.values()),
            "offenders": [
                f"{who}: {count} x {kind}"
                for (who, kind), count in self.offences.counts.most_common(OFFENDERS_SHOWN)
            ],
        }

    def _queues(self, channel: Channel) -> Counter[str]:
        """For whom events wait, and how many, at the longest queue of each member's sessions."""
        queues: Counter[str] = Counter()
        for subscriber, outlet in channel.outlets.items():
            if outlet.events:
                name = self.cluster.name_of(subscriber)
                queues[name] = max(queues[name], outlet.events)
        return queues

    def _health(self) -> str:
        if self._driver.disk_full:
            return "disk full"
        if self.misbehaviour != "none":
            return "misbehaving"
        groups = self.broker.ordering.groups if self.broker.ordering is not None else {}
        if any(group.stopped for group in groups.values()):
            return "log stopped"
        return "store in trouble" if self._store_trouble() else "ok"

    def _store_trouble(self) -> str:
        return self.keeper.outside.trouble if self.keeper is not None else ""

    def _regency(self) -> int | None:
        """Of the group that orders most strictly; live topics have no leader."""
        groups = self.broker.ordering.groups if self.broker.ordering is not None else {}
        group = groups.get(GroupKind.BYZANTINE) or next(iter(groups.values()), None)
        return None if group is None else group.consensus.regency

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Topology):
                self._adopt(outcome.cluster)

    def _adopt(self, cluster: Cluster) -> None:
        """Commands have changed the cluster; what is older than our file we know already."""
        if self._until is None and 0 < cluster.revision == self.cluster.revision:
            for sentence in compare(self.cluster, cluster):
                _log.warning("%s", sentence)
        is_edited = cluster.revision == self.cluster.revision and (
            cluster.clients != self.cluster.clients
        )
        if is_edited:
            _log.warning(
                "the file has other clients than the cluster, and those of the cluster count; "
                "'quorate cluster add-client' and 'remove-client' change them"
            )
        elif cluster.revision <= self.cluster.revision:
            return
        before, self.cluster = self.cluster, cluster.as_in(self.cluster)
        cluster = self.cluster
        own = cluster.replicas[self.me.number]
        if public_of(own) != self._identity.public:
            self._give_way(cluster)
            return
        if self._until is None:
            self.me = own
        elif (own.host, own.port) != (self.me.host, self.me.port):
            _log.warning("others look for %s at %s:%s now", own.name, own.host, own.port)
        self.offences.cluster = cluster
        if self.keeper is not None:
            self.keeper.adopt(cluster)
        if cluster.members != before.members:
            self._macs.adopt(macs_of(cluster, self._identity))
            self._transport.adopt(cluster)
        _log.info(
            "the cluster has changed (revision %s): %s replicas, %s clients, %s topics",
            cluster.revision, len(cluster.replicas), len(cluster.clients), len(cluster.topics),
        )  # fmt: skip

    def _give_way(self, cluster: Cluster) -> None:
        """Somebody else has our name now."""
        sentence = (
            f"{self.me.name} has other keys since revision {cluster.revision} of the cluster; "
            f"start it with those, and with the file that 'quorate cluster current' writes"
        )
        if self._until is None:
            raise ConfigError(sentence)
        _log.critical("this process ends: %s", sentence)
        self._until.set()

    # Reporting

    def _on_report(self, report: Report) -> None:
        self.offences.note(report.node, report.kind, report.detail)

    def _on_store_trouble(self, sentence: str) -> None:
        """We vouch for the store outside, so what it does we do."""
        self.offences.note(self.me.number, "store", sentence)

    def _on_offence(self, peer: NodeId | None, address: str, sentence: str) -> None:
        self.offences.note(peer, "offence", f"{sentence} (from {address})")

    async def _sample_rates(self) -> None:
        before, at = self._totals(), time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            now, totals = time.monotonic(), self._totals()
            self._rates = {
                f"{name}_per_s": (totals[name] - before[name]) / (now - at) for name in totals
            }
            before, at = totals, now

    def _totals(self) -> dict[str, int]:
        return {
            "batches_in": self.broker.counters["batches_in"],
            "events_out": sum(
                served.scope.channel.counters["offered"] for served in self.broker.topics.values()
            ),
        }

    def _samples(self) -> Iterator[Sample]:
        yield "up_seconds", {}, time.monotonic() - self._started
        yield "memory_bytes", {}, memory_bytes()
        yield "links", {}, len(self._driver.connected_peers)
        yield "batches_in_total", {}, self.broker.counters["batches_in"]
        yield "dropped_frames_total", {}, self._driver.counters["dropped_frames"]
        yield "internal_errors_total", {}, self._driver.counters["internal_errors"]
        for served in self.broker.topics.values():
            channel, labels = served.scope.channel, {"topic": served.scope.topic.name}
            yield "queued_events", labels, channel.depth_events
            longest = max((outlet.events for outlet in channel.outlets.values()), default=0)
            yield "longest_queue_events", labels, longest
            yield "subscribers", labels, len(channel.outlets)
            yield "publishers", labels, len(channel.publishers)
            yield "offered_events_total", labels, channel.counters["offered"]
            yield "discarded_events_total", labels, channel.counters["discarded"]
            yield "expired_events_total", labels, channel.counters["expired"]
        if self.keeper is not None:
            yield "disk_full", {}, bool(self._driver.disk_full)
            yield from self.keeper.samples(self.broker)
        for (who, kind), count in self.offences.counts.items():
            yield "offences_total", {"member": who, "kind": kind}, count


def memory_bytes() -> int:
    """The resident memory of this process."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="quorate.runtime.replica", description=__doc__)
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster file")
    parser.add_argument("--name", required=True, help="which replica of it this is")
    parser.add_argument("--key", type=Path, required=True, help="its private keys")
    parser.add_argument("--data", type=Path, required=True, help="where it keeps log topics")
    parser.add_argument(
        "--until-input-ends", action="store_true", help="stop when the standard input is closed"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        cluster, identity = read_cluster(given.cluster), read_identity(given.key)
        if identity.public.name != given.name:
            raise ConfigError(f"{given.key} holds the keys of {identity.public.name}")
        mark, ignored = check_mark(given.data, cluster, given.name)
        for sentence in ignored:
            _log.warning("%s", sentence)
        keeps = mark.has_run and cluster.control is not None
        founding = mark.founding if keeps else read_founding(given.cluster, cluster)

        def make() -> ReplicaProcess:
            process = ReplicaProcess(cluster, founding, identity, given.data)
            # From here on it says what it must not forget.
            if not mark.has_run:
                write_mark(given.data, founding, has_run=True)
            return process

        run(_serve(make, until_input_ends=given.until_input_ends))
    except (QuorateError, OSError) as error:
        _log.error("%s cannot run: %s", given.name, error)
        return 2
    return 0


async def _serve(make: "Callable[[], ReplicaProcess]", *, until_input_ends: bool) -> None:
    until = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, until.set)
    if until_input_ends:
        # Nothing is ever written there: it is readable when it ends, and from then on.
        loop.add_reader(sys.stdin.fileno(), _input_ended, loop, until)
    await make().run(until)


def _input_ended(loop: asyncio.AbstractEventLoop, until: asyncio.Event) -> None:
    loop.remove_reader(sys.stdin.fileno())
    until.set()


if __name__ == "__main__":
    sys.exit(main())
