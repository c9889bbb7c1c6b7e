"""The raw pipe: what one sender and one receiver reach when there is nothing between them.

Framed TCP over the loopback, one process at each end, the same event loop as everything else
here, and no security, no protocol and no queue. The sender builds every frame, a length and a
payload, and hands many of them to the kernel at once; the receiver looks at every length and
takes every payload out as bytes. That is the least that a program in this language does with a
message, and so the yardstick for all others. Whoever makes it faster makes it better: a slow
yardstick flatters.
"""

import argparse
import asyncio
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from struct import Struct
from typing import cast

from quorate.bench.latencies import percentile
from quorate.bench.processes import BenchError, Parent, Worker
from quorate.runtime.loop import run

HOST = "127.0.0.1"
START_SECONDS_MAX = 30.0

_LENGTH = Struct("<I")
_INBOX_BYTES = 256 * 1024
_WRITE_BYTES = 256 * 1024
_WRITE_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PipeRate:
    """What the pipe carried per second."""

    frame_bytes: int
    frames_per_s: float

    @property
    def mb_per_s(self) -> float:
        return self.frames_per_s * self.frame_bytes / 1e6


async def measure_rate(frame_bytes: int, seconds: float) -> PipeRate:
    """Let a pipe run for so long."""
    counted = await _run_pipe("stream", frame_bytes, seconds)
    return PipeRate(frame_bytes, counted["frames"] / counted["seconds"])


async def measure_round_trip_ms(frame_bytes: int, seconds: float) -> float:
    """The median time in which one frame goes there and comes back."""
    counted = await _run_pipe("ping", frame_bytes, seconds)
    return float(counted["p50_ms"])


async def _run_pipe(mode: str, frame_bytes: int, seconds: float) -> dict[str, float]:
    """Start both ends; the one that measures says what it counted."""
    async with AsyncExitStack() as stack:
        receiver = await Worker.start(__name__, mode, "receive")
        stack.push_async_callback(receiver.stop)
        port = await receiver.hear(START_SECONDS_MAX)
        sender = await Worker.start(
            *(__name__, mode, "send", "--port", str(port)),
            *("--frame-bytes", str(frame_bytes), "--seconds", str(seconds)),
        )
        stack.push_async_callback(sender.stop)
        measuring = receiver if mode == "stream" else sender
        counted: dict[str, float] = await measuring.hear(START_SECONDS_MAX + seconds)
    if not all(counted.values()):
        raise BenchError("the raw pipe carried nothing; give it more time")
    return counted


class Inbox(asyncio.BufferedProtocol):
    """Splits what arrives into frames; a subclass does something with them."""

    def __init__(self) -> None:
        self._buffer = bytearray(_INBOX_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self.closed = asyncio.Event()
        self.tcp: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.tcp = cast(asyncio.Transport, transport)
        self.tcp.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.tcp.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        buffer, view, end, at = self._buffer, self._view, self._end + count, 0
        unpack_from, header_bytes = _LENGTH.unpack_from, _LENGTH.size
        payloads: list[bytes] = []
        while at + header_bytes <= end:
            (length,) = unpack_from(buffer, at)
            after = at + header_bytes + length
            if after > end:
                self._make_room_for(header_bytes + length)
                break
            payloads.append(bytes(view[at + header_bytes : after]))
            at = after
        self._end = end - at
        if at and self._end:
            self._buffer[: self._end] = buffer[at:end]
        self.received(payloads)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def received(self, payloads: list[bytes]) -> None:
        raise NotImplementedError

    def _make_room_for(self, frame_bytes: int) -> None:
        """A buffer holds at least one frame, however long."""
        if frame_bytes > len(self._buffer):
            larger = bytearray(2 * frame_bytes)
            larger[: len(self._buffer)] = self._buffer
            self._buffer, self._view = larger, memoryview(larger)


class Counter(Inbox):
    """The receiving end of a stream: counts, from the first byte to the last."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        self._began_s = 0.0
        self._ended_s = 0.0

    @property
    def seconds(self) -> float:
        return self._ended_s - self._began_s

    def received(self, payloads: list[bytes]) -> None:
        self._ended_s = time.perf_counter()
        if not self._began_s:
            self._began_s = self._ended_s
        self.frames += len(payloads)


class Echo(Inbox):
    """The receiving end of a ping: sends back what comes."""

    def received(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.tcp.write(_LENGTH.pack(len(payload)) + payload)


class Pinger(Inbox):
    """The sending end of a ping: the next frame leaves when the last one is back."""

    def __init__(self, frame_bytes: int, seconds: float) -> None:
        super().__init__()
        self.round_trips_ns: list[int] = []
        self._payload = bytes(frame_bytes)
        self._until_s = time.perf_counter() + seconds
        self._sent_ns = 0

    def ping(self) -> None:
        self._sent_ns = time.perf_counter_ns()
        self.tcp.write(_LENGTH.pack(len(self._payload)) + self._payload)

    def received(self, payloads: list[bytes]) -> None:
        if not payloads:
            return
        self.round_trips_ns.append(time.perf_counter_ns() - self._sent_ns)
        if time.perf_counter() < self._until_s:
            self.ping()
        else:
            self.tcp.close()


class Flood(asyncio.Protocol):
    """The sending end of a stream: as many frames as the kernel takes."""

    def __init__(self, frame_bytes: int, seconds: float) -> None:
        self.closed = asyncio.Event()
        self._payload = bytes(frame_bytes)
        self._frames_per_write = max(1, _WRITE_BYTES // (frame_bytes + _LENGTH.size))
        self._until_s = time.perf_counter() + seconds
        self._loop = asyncio.get_running_loop()
        self._full = False
        self._tcp: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._tcp.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._write()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._write()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def _write(self) -> None:
        if time.perf_counter() >= self._until_s:
            self._tcp.close()
            return
        payload, pack, frames = self._payload, _LENGTH.pack, []
        for _ in range(self._frames_per_write):
            frames.append(pack(len(payload)) + payload)
        self._tcp.writelines(frames)
        # A full buffer calls back when it has drained; otherwise the loop has a look around.
        if not self._full:
            self._loop.call_soon(self._write)


async def _receive(mode: str) -> None:
    parent, loop = await Parent.connect(), asyncio.get_running_loop()
    end = Counter() if mode == "stream" else Echo()
    server = await loop.create_server(lambda: end, HOST, 0)
    parent.say(server.sockets[0].getsockname()[1])
    await end.closed.wait()
    if isinstance(end, Counter):
        parent.say({"frames": end.frames, "seconds": end.seconds})
    server.close()


async def _stream(port: int, frame_bytes: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    _, flood = await loop.create_connection(lambda: Flood(frame_bytes, seconds), HOST, port)
    await flood.closed.wait()


async def _ping(port: int, frame_bytes: int, seconds: float) -> None:
    parent, loop = await Parent.connect(), asyncio.get_running_loop()
    _, pinger = await loop.create_connection(lambda: Pinger(frame_bytes, seconds), HOST, port)
    pinger.ping()
    await pinger.closed.wait()
    round_trips = sorted(pinger.round_trips_ns)
    parent.say({"p50_ms": percentile(round_trips, 50) / 1e6, "count": len(round_trips)})


def main() -> None:
    parser = argparse.ArgumentParser(prog="quorate.bench.pipe", description=__doc__)
    parser.add_argument("mode", choices=("stream", "ping"))
    parser.add_argument("end", choices=("send", "receive"))
    parser.add_argument("--port", type=int)
    parser.add_argument("--frame-bytes", type=int)
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    if given.end == "receive":
        run(_receive(given.mode))
    elif given.mode == "stream":
        run(_stream(given.port, given.frame_bytes, given.seconds))
    else:
        run(_ping(given.port, given.frame_bytes, given.seconds))


if __name__ == "__main__":
    main()
