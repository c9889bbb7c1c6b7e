"""Asking replicas how they are, and making them misbehave on purpose."""

import asyncio
from collections.abc import Iterable

import msgspec

from quorate.client.session import Session
from quorate.core.errors import QuorumError, RefusedError
from quorate.core.ids import NodeId
from quorate.core.messages import Message, Misbehave, Reply, StatusQuery, StatusReport
from quorate.protocol.machine import Outcome, Ready
from quorate.runtime.driver import Handler

TIMEOUT_S = 3.0


class Admin(Session):
    """An operator's view of single replicas; nothing is voted on here."""

    _number = 0

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
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Make a replica behave like this from now on; `behave` ends it."""
        order = Misbehave(self._next(), behaviour, percent, list(fields), delay_ms, list(towards))
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

    # Session

    def _machine(self) -> "Idle":
        self._waiting: dict[int, asyncio.Future[str | dict[str, object]]] = {}
        return Idle()

    def _handlers(self) -> dict[type, Handler]:
        return {StatusReport: self._on_status, Reply: self._on_reply}

    def _on_outcomes(self, outcomes: list[Outcome]) -> None:
        """An idle machine has none."""

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


class Idle:
    """A machine for a node that takes part in no protocol."""

    def step(self, sender: NodeId, message: Message) -> None: ...

    def tick(self, now_us: int) -> None: ...

    def connected(self, peer: NodeId) -> None: ...

    def disconnected(self, peer: NodeId) -> None: ...

    def writable(self, peer: NodeId, writable: bool) -> None: ...

    def take(self) -> Ready:
        return Ready()
