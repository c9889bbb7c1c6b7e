"""What operators do: change topics, ask replicas how they are, make them misbehave on purpose."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from quorate.client.session import ClusterLike, IdentityLike, Session
from quorate.core.cluster import Client, Member, Replica
from quorate.core.control import (
    AddReplica,
    AlterGroup,
    AlterTopic,
    CreateTopic,
    DeleteGroup,
    PutClient,
    RemoveClient,
    ReplaceReplica,
    ResetGroup,
    Setting,
    full_name,
)
from quorate.core.errors import QuorumError, RefusedError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, Misbehave, Reply, StatusQuery, StatusReport
from quorate.protocol.source import Source
from quorate.runtime.topics import topics_of

TIMEOUT_S = 3.0

_Command = TypeVar("_Command", ReplaceReplica, AddReplica, PutClient)


class Admin(Session):
    """An operator's view of a cluster.

    Commands (`create_topic` and the like) are ordered and carried out by all replicas alike.
    `status` and `misbehave` are about single replicas, and nothing is voted on there.
    """

    _number = 0

    def __init__(self, cluster: ClusterLike, identity: IdentityLike) -> None:
        super().__init__(cluster, identity)
        self._waiting: dict[int, asyncio.Future[str | dict[str, object]]] = {}
        self._handlers = {StatusReport: self._on_status, Reply: self._on_reply}
        self._machine = Source(self.node, topics_of(self.cluster), self._macs, session=1)

    async def create_topic(self, topic: str, contract: Mapping[str, Setting]) -> None:
        """Let there be a topic; `contract` is what the cluster file would say of it."""
        await self.command(CreateTopic(topic, dict(contract)))

    async def alter_topic(self, topic: str, changes: Mapping[str, Setting]) -> None:
        """Change keys of a topic's contract, those that can be changed."""
        await self.command(AlterTopic(topic, dict(changes)))

    async def replace_replica(self, replica: Replica) -> None:
        """From now on the replica of this name has these keys and this address."""
        await self.command(_about(ReplaceReplica, replica))

    async def add_replica(self, replica: Replica) -> None:
        """Let there be one more replica; operators of other parties may have to ask for it, too."""
        await self.command(_about(AddReplica, replica))

    async def put_client(self, client: Client) -> None:
        """Let there be this client, or let the one of this name have these keys and rights.

        Its number is the cluster's to give.
        """
        await self.command(_about(PutClient, client))

    async def remove_client(self, name: str) -> None:
        """The client of this name is none any more; what it published stays."""
        await self.command(RemoveClient(name))

    async def let_in(self, group: str, clients: Iterable[str]) -> None:
        """From now on these clients of other parties may be in this group, and no others."""
        await self.command(AlterGroup(self._full(group), list(clients)))

    async def reset_group(self, group: str, offsets: Iterable[tuple[str, int, int]] = ()) -> None:
        """The group goes on with these offsets (topic, partition, offset), and nothing else."""
        await self.command(ResetGroup(self._full(group), list(offsets)))

    async def delete_group(self, group: str) -> None:
        """Forget this group and its offsets."""
        await self.command(DeleteGroup(self._full(group)))

    async def groups(self) -> dict[str, dict[str, object]]:
        """Groups as f + 1 replicas describe them alike, some of each party."""
        found: list[tuple[str, dict[str, object]]] = []
        for report in (await self.status()).values():
            log = report.get("log")
            control = log.get("control") if isinstance(log, dict) else None
            found += control["groups"].items() if control else ()
        return {
            name: group
            for name, group in sorted(found, key=lambda each: each[0])
            if sum(other == (name, group) for other in found) > self.cluster.f
        }

    def _full(self, group: str) -> str:
        return full_name(self.member.party, group)

    async def status(self, timeout_s: float = TIMEOUT_S) -> dict[str, dict[str, object]]:
        """What each replica says of itself, and of those that say nothing, why."""
        names = [replica.name for replica in self.cluster.replicas]
        found = await asyncio.gather(*(self._status_of(name, timeout_s) for name in names))
        return dict(zip(names, found, strict=True))

    async def misbehave(
        self,
        replica: str,
        behaviour: str,
        *,
        percent: float = 100.0,
        fields: Iterable[str] = (),
        delay_ms: float = 0.0,
        towards: Iterable[str] = (),
        ahead_s: float = 0.0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Make a replica behave like this from now on; `behave` ends it."""
        number = self._next()
        order = Misbehave(
            number, behaviour, percent, list(fields), delay_ms, list(towards), ahead_s
        )
        node = self.cluster.named(replica).number
        sentence = await self._ask(node, order, order.number, timeout_s)
        if sentence:
            raise RefusedError(f"{replica}: {sentence}")

    async def _status_of(self, name: str, timeout_s: float) -> dict[str, object]:
        node = self.cluster.named(name).number
        query = StatusQuery(self._next())
        try:
            report = await self._ask(node, query, query.number, timeout_s)
        except QuorumError as error:
            return {"name": name, "health": "down", "why": error.causes[name]}
        return report if isinstance(report, dict) else {}

    async def _ask(
        self, node: NodeId, message: Message, number: int, timeout_s: float
    ) -> str | dict[str, object]:
        future: asyncio.Future[str | dict[str, object]]
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self.driver.until_connected(node)
                self.driver.send(node, message)
                return await future
        except TimeoutError:
            why = self.transport.why_down(node) or f"no answer within {timeout_s:g} s"
            name = self.cluster.member(node).name
            raise QuorumError(f"{name} did not answer", {name: why}) from None
        finally:
            self._waiting.pop(number, None)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _on_status(self, sender: NodeId, report: StatusReport) -> None:
        future = self._waiting.get(report.number)
        if future is None or future.done():
            return
        try:
            future.set_result(msgspec.msgpack.decode(report.report, type=dict[str, object]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            name = self.cluster.member(sender).name
            why = f"its report makes no sense: {error}"
            future.set_exception(QuorumError(f"{name} did not say how it is", {name: why}))

    def _on_reply(self, _: NodeId, reply: Reply) -> None:
        future = self._waiting.get(reply.number)
        if future is not None and not future.done():
            future.set_result(reply.sentence)


def _about(kind: type[_Command], member: Member) -> _Command:
    """A command that says of a member what there is to say in it."""
    return kind(**{field: getattr(member, field) for field in kind.__struct_fields__})
