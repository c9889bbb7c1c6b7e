"""Real sockets on the loopback for tests: clusters, recorders, and a proxy that meddles."""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import uvloop

from quorate.core.cluster import Client, Cluster, Replica
from quorate.core.ids import Lane, NodeId
from quorate.core.messages import Message, Publish
from quorate.crypto.identity import Identity
from quorate.runtime.transport import Transport

LOOPBACK = "127.0.0.1"
LOOPS = ("uvloop", "asyncio")
BROKER, CLIENT = 0, 1000
Security: TypeAlias = Literal["tls", "mac"]
SECURITIES: tuple[Security, ...] = ("tls", "mac")
PATIENCE_S = 20.0
QUICK = (0.001, 0.01)

_T = TypeVar("_T")


def run(loop: str, main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on this kind of event loop; a test that hangs fails."""

    async def bounded() -> _T:
        async with asyncio.timeout(PATIENCE_S):
            return await main

    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(bounded())


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def identity(name: str, *, forged: bool = False) -> Identity:
    """The keys of a member, the same ones each time; or those of whoever poses as it."""
    return _identity(name, forged)


@lru_cache
def _identity(name: str, forged: bool) -> Identity:
    return Identity.generate(name)


def cluster(
    ports: Sequence[int],
    *,
    clients: Sequence[str] = ("client-0",),
    security: Security = "mac",
    mac: str = "blake3",
    name: str = "testing",
    forged: str = "",
) -> Cluster:
    """Replicas broker-0, broker-1, ... on these ports, and these clients from number 1000 on.

    For the member that is named as forged, other keys are pinned than everywhere else.
    """
    return Cluster(
        name=name,
        f=0,
        # Whoever forges a file says that it is of the same cluster.
        founders=b"f" * 32,
        link_security=security,
        mac=mac,
        replicas=tuple(
            Replica(number=number, host=LOOPBACK, port=port, **_pins(f"broker-{number}", forged))
            for number, port in enumerate(ports)
        ),
        clients=tuple(
            Client(number=1000 + index, **_pins(name, forged)) for index, name in enumerate(clients)
        ),
    )


def _pins(name: str, forged: str) -> dict[str, Any]:
    public = identity(name, forged=name == forged).public
    return {
        "name": name,
        "party": name,
        "sign_key": public.sign_key,
        "mac_key": public.mac_key,
        "certificate": public.certificate,
    }


class Recorder:
    """The owner of a transport, which remembers everything that it was told."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.log: list[tuple[object, ...]] = []
        self._changed = asyncio.Event()

    def received(self, peer: NodeId, messages: list[Message]) -> None:
        self.messages.extend(messages)
        self._changed.set()

    def connected(self, peer: NodeId) -> None:
        self._note("connected", peer)

    def disconnected(self, peer: NodeId, why: str) -> None:
        self._note("disconnected", peer, why)

    def writable(self, peer: NodeId, writable: bool) -> None:
        self._note("writable", peer, writable)

    def offence(self, peer: NodeId | None, address: str, sentence: str) -> None:
        self._note("offence", peer, address, sentence)

    def _note(self, *entry: object) -> None:
        self.log.append(entry)
        self._changed.set()

    def count(self, *start: object) -> int:
        """How many entries of the log begin like this."""
        return sum(entry[: len(start)] == start for entry in self.log)

    @property
    def offences(self) -> list[tuple[object, str]]:
        """Who was named, and for what."""
        return [(entry[1], str(entry[3])) for entry in self.log if entry[0] == "offence"]

    async def until(self, condition: Callable[[], object]) -> None:
        """Return as soon as the condition holds; it may only depend on what is recorded here."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def heard(self, *start: object, times: int = 1) -> None:
        await self.until(lambda: self.count(*start) >= times)


def publish(first: int, *payloads: bytes) -> Publish:
    return Publish(7, Lane.EVENTS, False, first, 0, list(payloads))


class Pair:
    """A broker that listens and a client that dialled it, both up."""

    def __init__(
        self,
        security: Security,
        *,
        mac: str = "blake3",
        back_off_s: tuple[float, float] = QUICK,
        write_buffer_bytes: int = 1 << 20,
    ) -> None:
        (self.port,) = free_ports(1)
        self.security, self.mac = security, mac
        self.back_off_s, self.write_buffer_bytes = back_off_s, write_buffer_bytes
        self.at_broker, self.at_client = Recorder(), Recorder()
        self.broker = self.new_broker()
        self.client = self.new_client(self.port)

    def new_broker(self) -> Transport:
        file = cluster([self.port], security=self.security, mac=self.mac)
        return Transport(file, identity("broker-0"), self.at_broker)

    def new_client(self, port: int) -> Transport:
        return Transport(
            cluster([port], security=self.security, mac=self.mac),
            identity("client-0"),
            self.at_client,
            back_off_s=self.back_off_s,
            write_buffer_bytes=self.write_buffer_bytes,
            session=0,
        )

    async def __aenter__(self) -> "Pair":
        await self.broker.listen(LOOPBACK, self.port)
        self.client.dial(BROKER)
        await self.at_client.heard("connected", BROKER)
        await self.at_broker.heard("connected", CLIENT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.client.close(), self.broker.close())


Meddle = Callable[[bytes], Iterable[bytes]]


def _untouched(chunk: bytes) -> Iterable[bytes]:
    yield chunk


@dataclass
class Proxy:
    """Passes one TCP connection on, chunk by chunk, and can alter what the dialler sends."""

    target_port: int
    meddle: Meddle = _untouched
    back: Meddle = _untouched
    sent: bytearray = field(default_factory=bytearray)
    port: int = 0
    _server: asyncio.Server | None = None
    _onward: asyncio.StreamWriter | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def inject(self, data: bytes) -> None:
        """Send bytes to the listener as if the dialler had."""
        assert self._onward is not None
        self._onward.write(data)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, self._onward = await asyncio.open_connection(LOOPBACK, self.target_port)
        for pumping in (
            self._pump(reader, self._onward, self._forth),
            self._pump(far_reader, writer, self.back),
        ):
            self._tasks.add(asyncio.create_task(pumping))

    def _forth(self, chunk: bytes) -> Iterable[bytes]:
        self.sent += chunk
        return self.meddle(chunk)

    @staticmethod
    async def _pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meddle: Meddle
    ) -> None:
        try:
            while chunk := await reader.read(65536):
                for piece in meddle(chunk):
                    writer.write(piece)
                    await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Everything that still comes until the other side closes."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""
