"""What every client has: an identity, links to all replicas, and a machine behind them."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import msgspec

from quorate.core.cluster import Client, Cluster
from quorate.core.contract import Contract
from quorate.core.control import CONTROL_TOPIC, Command, Renew
from quorate.core.errors import (
    ClosedError,
    ConfigError,
    LocalProtocolError,
    QuorumError,
    RefusedError,
    UnreachedError,
)
from quorate.core.ids import SESSION_MAX, NodeId, node_of
from quorate.core.quorum import Quorum
from quorate.crypto.identity import Identity
from quorate.protocol.control.client import Commands
from quorate.protocol.machine import Answered, Outcome, Report, Topology
from quorate.protocol.ordering.placement import group_of, rules_of
from quorate.runtime.driver import Driver, Handler, Paced
from quorate.runtime.files import cluster_file, key_file, read_cluster, read_identity
from quorate.runtime.topics import macs_of
from quorate.runtime.transport import Transport

ClusterLike: TypeAlias = Cluster | str | Path
IdentityLike: TypeAlias = Identity | str | Path

_log = logging.getLogger("quorate.client")

ANSWER_TIMEOUT_S = 15.0
# A lease is renewed so often before it would end.
LEASE_PARTS = 3
CLOSE_TIMEOUT_S = 3.0
# So many replicas are named when none can be reached.
PLACES_SHOWN = 7
# Clients ask so often whether there are other replicas, topics or partitions than before.
TOPOLOGY_EVERY_S = 30.0


def resolve(cluster: ClusterLike, identity: IdentityLike) -> tuple[Cluster, Identity]:
    """Read what was given by its path: a cluster directory, its file, a name, a key file."""
    directory = None
    if not isinstance(cluster, Cluster):
        file = cluster_file(Path(cluster))
        if not file.exists():
            raise ConfigError(
                f"there is no cluster at {cluster} (no file {file}); expected is a directory with "
                f"a cluster.toml, as 'quorate init' writes one, or that file itself"
            )
        directory = file.parent
        cluster = read_cluster(file)
    if isinstance(identity, Identity):
        return cluster, identity
    path = Path(identity)
    if directory is not None and path.name == str(identity):
        # A name means the member, even where a file or directory happens to be called so too.
        named = key_file(directory, path.name)
        if named.exists() or not path.exists():
            cluster.named(path.name)
            path = named
    if not path.exists():
        raise ConfigError(
            f"there are no private keys at {path}; expected is the name of a member whose keys are "
            f"in the cluster's directory, or a file that 'quorate identity new' wrote"
        )
    return cluster, read_identity(path)


class ClientMachine(Paced, Protocol):
    """What a session needs of its client's machine."""

    commands: Commands

    def replies(self, number: int) -> Mapping[NodeId, str]: ...


class Session:
    """Connects when entered, disconnects when left. All clients build on it."""

    # The machine that this client runs, which its constructor makes.
    _machine: ClientMachine

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        self.cluster, self._identity = resolve(cluster, identity)
        member = self.cluster.named(self._identity.public.name)
        if not isinstance(member, Client):
            raise ConfigError(f"{member.name} is a replica; clients have an identity of their own")
        self.member = member
        self._macs = macs_of(self.cluster, self._identity)
        self.session = self._new_session()
        self.node = node_of(member.number, self.session)
        self.reports: dict[str, int] = {}
        self._answers: dict[int, asyncio.Future[str]] = {}
        # What is done with what the machine delivers, by its kind, and with messages that are not
        # for the machine.
        self._outcomes: dict[type, Callable[[Any], object]] = {
            Answered: self._on_answered,
            Topology: lambda said: self._adopt(said.cluster),
        }
        self._handlers: dict[type, Handler] = {}
        self._driver: Driver | None = None
        self._transport: Transport | None = None
        self._closed = False
        # Whether the cluster is what replicas say it is, and not only what its file says.
        self._is_current = False
        # Says now and then that we are here, while we hold something.
        self._lease: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Replicas that are down now are connected to when they come up."""
        if self._driver is not None:
            return
        self._driver = Driver(
            self._machine,
            on_outcomes=self._on_outcomes,
            on_report=self._on_report,
            handlers=self._handlers,
            name_of=self.cluster.name_of,
        )
        self._transport = Transport(
            self.cluster, self._identity, self._driver, session=self.session
        )
        for replica in self.cluster.replicas:
            self._transport.dial(replica.number)
        self._driver.start(self._transport)
        if self.cluster.control is not None:
            self._watch = asyncio.create_task(self._watch_topology())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for task in (self._lease, self._watch):
            if task is not None:
                task.cancel()
        if self._driver is not None and self._transport is not None:
            self._driver.stop()
            # uvloop may never tell the end of a connection that was still being made.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._transport.close(), CLOSE_TIMEOUT_S)
        for future in self._answers.values():
            fail(future, ClosedError(f"{type(self).__name__} was closed"))

    async def reach(self, within_s: float) -> None:
        """Wait until a replica is connected; raise if nobody was at any address for so long.

        Clients need not call it: what they ask for waits for replicas to come up. It is for those
        who would rather know at once.
        """
        members = [replica.number for replica in self.cluster.replicas]
        links = [asyncio.ensure_future(self.driver.until_connected(each)) for each in members]
        await asyncio.wait(links, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for link in links:
            link.cancel()
        if self._is_nobody_there(members):
            raise self._unreached(f"no replica of cluster {self.cluster.name}", members)

    # The control plane

    async def command(self, command: Command) -> None:
        """Have the cluster carry this out; raise what it refuses."""
        number = self._machine.commands.give(command, time.time_ns() // 1000)
        # What to do, and with what topic, group or replica.
        words = " ".join(map(str, islice(msgspec.to_builtins(command).values(), 2)))
        what = f"to '{words}', which may still be carried out"
        try:
            await self._answer(number, CONTROL_TOPIC, what, needed=self._orderers_needed())
        finally:
            self._forget_answer(number)

    async def learn_topology(
        self, timeout_s: float | None = None, *, patiently: bool = False
    ) -> Cluster:
        """Ask which topics and replicas there are now; they count from here on.

        Where one lags behind and f lie, that may be what was so before, unless one asks patiently.
        """
        number = self._machine.commands.ask_topology(patient=patiently)
        try:
            await self._answer(number, CONTROL_TOPIC, "which topics there are", timeout_s)
        finally:
            self._forget_answer(number)
        self._is_current = True
        return self.cluster

    async def founding(self) -> Cluster:
        """The cluster as it was when it began, which a replica with an empty disk has to know."""
        commands = self._machine.commands
        await self._answer(commands.ask_founding(), CONTROL_TOPIC, "how the cluster began")
        assert commands.founding is not None
        return commands.founding

    async def _watch_topology(self) -> None:
        while not self._closed:
            await asyncio.sleep(TOPOLOGY_EVERY_S)
            with contextlib.suppress(QuorumError):
                await self.learn_topology()

    async def _know(self, topics: Iterable[str]) -> None:
        """Topics may have come about, or have got partitions, after our file was written."""
        topics = list(topics)
        for patiently in (False, True):
            known = (*self.cluster.topics, CONTROL_TOPIC)
            if self.cluster.control is not None and any(topic not in known for topic in topics):
                await self.learn_topology(patiently=patiently)
        contracts = [self.cluster.contract(topic) for topic in topics]
        has_logs = any(contract.is_log for contract in contracts)
        if has_logs and not self._is_current and self.cluster.control is not None:
            await self.learn_topology()

    def _adopt(self, cluster: Cluster) -> bool:
        """The cluster is known to be like this now; False if that is no news.

        Replicas that lag behind tell us what it was before.
        """
        cluster = cluster.as_in(self.cluster)
        if cluster == self.cluster or cluster.revision < self.cluster.revision:
            return False
        self.cluster = cluster
        self._macs.adopt(macs_of(cluster, self._identity))
        self.transport.adopt(cluster)
        for replica in cluster.replicas:
            self.transport.dial(replica.number)
        return True

    def _keep_lease(self, lease_us: int) -> None:
        """From now on we hold something, and have to say now and then that we are here."""
        if self._lease is None:
            self._lease = asyncio.create_task(self._renew_lease(lease_us / LEASE_PARTS / 1e6))

    async def _renew_lease(self, every_s: float) -> None:
        while not self._closed:
            await asyncio.sleep(every_s)
            try:
                await self._renew()
            except RefusedError:
                # We were away for too long, and what we held is free.
                with contextlib.suppress(QuorumError, RefusedError):
                    await self._take_again()
            except QuorumError as error:
                _log.warning("the lease of %s was not renewed: %s", self.member.name, error)

    async def _renew(self) -> None:
        await self.command(Renew())

    # For subclasses

    def _new_session(self) -> int:
        """Which session of its client this is; no two are the same at a time."""
        return 1 + secrets.randbelow(SESSION_MAX)

    async def _take_again(self) -> None:
        """Ask again for all that a lease was for. Some clients hold nothing."""

    def _replies(self, number: int) -> Mapping[NodeId, str]:
        """Who has answered a request of the machine so far, and what."""
        return self._machine.replies(number)

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        """What the machine delivered in one turn."""
        for outcome in outcomes:
            handle = self._outcomes.get(type(outcome))
            if handle is not None:
                handle(outcome)

    @property
    def driver(self) -> Driver:
        if self._driver is None or self._closed:
            state = "is closed" if self._closed else "is not started; use 'async with'"
            raise ClosedError(f"this {type(self).__name__} {state}")
        return self._driver

    @property
    def transport(self) -> Transport:
        assert self._transport is not None
        return self._transport

    def _expect_answer(self, number: int) -> "asyncio.Future[str]":
        future = self._answers.get(number)
        if future is None:
            future = self._answers[number] = asyncio.get_running_loop().create_future()
        return future

    def _forget_answer(self, number: int) -> None:
        """We wait for it no more. If it has not come yet, it is forgotten when it does."""
        future = self._answers.get(number)
        if future is not None and not future.done():
            future.add_done_callback(lambda _: self._answers.pop(number, None))
        else:
            self._answers.pop(number, None)

    def _on_answered(self, answered: Answered) -> None:
        future = self._expect_answer(answered.number)
        if not future.done():
            future.set_result(answered.sentence)

    def _listening(self) -> contextlib.AbstractContextManager[None]:
        """While somebody waits for an answer. Clients that hold back reading go on meanwhile."""
        return contextlib.nullcontext()

    async def _answer(
        self,
        number: int,
        topic: str,
        what: str,
        timeout_s: float | None = None,
        *,
        needed: int | None = None,
    ) -> None:
        """Have a request sent, and wait for the voted answer; raise what it refuses."""
        self.driver.wake()
        timeout_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
        future = self._expect_answer(number)
        try:
            with self._listening():
                sentence = await asyncio.wait_for(asyncio.shield(future), timeout_s)
        except TimeoutError:
            raise self._too_few(f"no quorum answered {what}", topic, number, needed) from None
        if sentence:
            raise RefusedError(sentence)

    def _too_few(
        self, sentence: str, topic: str, number: int = 0, needed: int | None = None
    ) -> QuorumError:
        """What to raise: how many replicas of a topic are there, how many it takes, and why."""
        members = self.cluster.placement(topic)
        if self._is_nobody_there(members):
            return self._unreached(f"no replica that serves '{topic}'", members)
        if needed is None:
            is_byzantine = self.cluster.contract(topic).protection == "byzantine"
            needed = Quorum(len(members), self.cluster.f).one_correct if is_byzantine else 1
        up = sum(replica in self.driver.connected_peers for replica in members)
        replicas = "1 replica" if len(members) == 1 else f"{len(members)} replicas"
        counted = f"{up} of {replicas} {'is' if up == 1 else 'are'} connected, and it takes"
        return QuorumError(f"{sentence}: {counted} {needed}", self._states(number, members))

    def _is_nobody_there(self, members: Iterable[NodeId]) -> bool:
        return all(self.transport.why_unreached(replica) for replica in members)

    def _unreached(self, who: str, members: Sequence[NodeId]) -> UnreachedError:
        replicas = [self.cluster.replicas[number] for number in members]
        places = [f"{each.name} at {each.host}:{each.port}" for each in replicas]
        if len(places) > PLACES_SHOWN:
            places[PLACES_SHOWN:] = [f"{len(places) - PLACES_SHOWN} more"]
        reasons = dict.fromkeys(self.transport.why_unreached(number) for number in members)
        return UnreachedError(
            f"{who} can be reached ({', '.join(places)}: {', '.join(reasons)})",
            self._states(0, members),
        )

    def _orderers_needed(self) -> int:
        """How many replicas it takes to put a command in order."""
        contract = self.cluster.contract(CONTROL_TOPIC)
        group = Quorum(self.cluster.orderers, self.cluster.f)
        return rules_of(group_of(contract), group).quorum

    def _states(self, number: int, members: Iterable[NodeId]) -> dict[str, str]:
        """Per replica, what it answered to a request, or what is known of its link."""
        replies = self._replies(number)
        return {self.cluster.name_of(replica): self._state(replica, replies) for replica in members}

    def _state(self, replica: NodeId, replies: Mapping[NodeId, str]) -> str:
        if replica in replies:
            return replies[replica] or "agreed"
        if replica in self.driver.connected_peers:
            return "connected, no word yet"
        return self.transport.why_down(replica)

    def _on_report(self, report: Report) -> None:
        name = self.cluster.name_of(report.node)
        key = f"{name}: {report.kind}"
        if key not in self.reports:
            # Whoever lies does so a thousand times a second: once is enough to read.
            _log.info("%s (%s)", key, report.detail)
        self.reports[key] = self.reports.get(key, 0) + 1


def check_partition(topic: str, contract: Contract, partition: int) -> None:
    if not 0 <= partition < contract.partitions:
        raise LocalProtocolError(
            f"topic '{topic}' has no partition {partition}; "
            f"it has partitions 0 to {contract.partitions - 1}"
        )


def fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Nobody may be waiting any more, and that is fine.
        future.exception()
