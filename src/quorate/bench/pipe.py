"""The raw pipe: what one sender and one receiver reach when there is nothing between them.

Framed TCP over the loopback, one process at each end, the same event loop as everything else
here, and no security, no protocol and no queue. The sender builds every frame, a length and a
payload; the receiver looks at every length and takes every payload out as bytes.

    plain       asyncio's streams as their documentation shows them: one `write` and two
                `readexactly` for each frame. Ratios refer to it (docs/decisions/0007).
    ping        the same streams, one frame at a time, there and back.
    coalesced   by hand: the frames of a turn are joined into one write, what one read brought is
                split from one buffer, and the allocator is set as replicas set it. It is the
                fastest that we know how to write, and stands beside the other in every row.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median
from struct import Struct
from typing import TypeAlias, cast

import msgspec

from quorate.bench.latencies import percentile
from quorate.bench.processes import BenchError, Parent, play, started
from quorate.runtime.loop import run, run_untuned

HOST = "127.0.0.1"
# The pipe that ratios refer to.
YARDSTICK = "plain"
START_SECONDS_MAX = 30.0

_LENGTH = Struct("<I")
_BUFFER_BYTES = 256 * 1024
_TURN_BYTES = 64 * 1024

_Counted: TypeAlias = dict[str, float]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What both ends of a pipe know, and where the sender finds the receiver."""

    frame_bytes: int
    seconds: float
    port: int = 0


@dataclass(frozen=True, slots=True)
class PipeRate:
    """What a pipe carried per second."""

    frame_bytes: int
    frames_per_s: float
    # What its receiver, the end that has more to do, spent on a megabyte of processor time.
    processor_ms_per_mb: float = 0.0

    @property
    def mb_per_s(self) -> float:
        return self.frames_per_s * self.frame_bytes / 1e6

    @staticmethod
    def median_of(rates: "Sequence[PipeRate]") -> "PipeRate":
        """Of several pipes with frames of one size."""
        return PipeRate(
            rates[0].frame_bytes,
            median(rate.frames_per_s for rate in rates),
            median(rate.processor_ms_per_mb for rate in rates),
        )


async def measure_rate(frame_bytes: int, seconds: float, kind: str = YARDSTICK) -> PipeRate:
    """Let a pipe run for so long."""
    counted = await _run_pipe(kind, frame_bytes, seconds)
    megabytes = counted["frames"] * frame_bytes / 1e6
    spent_ms = 1e3 * counted["processor_s"] / megabytes
    return PipeRate(frame_bytes, counted["frames"] / counted["seconds"], spent_ms)


async def measure_round_trip_ms(frame_bytes: int, seconds: float) -> float:
    """The median time in which one frame goes there and comes back."""
    counted = await _run_pipe("ping", frame_bytes, seconds)
    return counted["p50_ms"]


async def _run_pipe(kind: str, frame_bytes: int, seconds: float) -> _Counted:
    """Start both ends; the one that measures says what it counted."""
    async with AsyncExitStack() as stack:
        end = End(frame_bytes=frame_bytes, seconds=seconds)
        receiver = await started(stack, __name__, f"receive_{kind}", end)
        port: int = await receiver.hear(START_SECONDS_MAX)
        end = msgspec.structs.replace(end, port=port)
        sender = await started(stack, __name__, f"send_{kind}", end)
        measuring = sender if kind == "ping" else receiver
        counted: _Counted = await measuring.hear(START_SECONDS_MAX + seconds)
    if not all(counted.values()):
        raise BenchError("the raw pipe carried nothing; give it more time")
    return counted


# By hand


class Counter(asyncio.BufferedProtocol):
    """The receiving end of a stream: splits what arrives into frames, and counts them."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.frames = 0
        self.began_s, self.spent_s = time.perf_counter(), time.process_time()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._tcp: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
        self._tcp.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

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
        self.frames += len(payloads)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()

    def _make_room_for(self, frame_bytes: int) -> None:
        """A buffer holds at least one frame, however long."""
        if frame_bytes > len(self._buffer):
            larger = bytearray(2 * frame_bytes)
            larger[: len(self._buffer)] = self._buffer
            self._buffer, self._view = larger, memoryview(larger)


class Flood(asyncio.Protocol):
    """The sending end of a stream: joins the frames of a turn while the transport takes them."""

    def __init__(self, end: End) -> None:
        self.closed = asyncio.Event()
        self._payload = bytes(end.frame_bytes)
        self._until_s = time.perf_counter() + end.seconds
        self._loop = asyncio.get_running_loop()
        self._full = False
        self._tcp: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)
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
        payload, pack = self._payload, _LENGTH.pack
        turn = range(_frames_per_turn(len(payload)))
        self._tcp.write(b"".join([pack(len(payload)) + payload for _ in turn]))
        # A full buffer calls back when it has drained; otherwise the loop has a look around.
        if not self._full:
            self._loop.call_soon(self._write)


async def _receive_coalesced(parent: Parent, _end: End) -> None:
    counter = Counter()
    server = await asyncio.get_running_loop().create_server(lambda: counter, HOST, 0)
    parent.say(server.sockets[0].getsockname()[1])
    await counter.closed.wait()
    parent.say(_counted(counter.frames, counter.began_s, counter.spent_s))
    server.close()


async def _send_coalesced(_parent: Parent, end: End) -> None:
    loop = asyncio.get_running_loop()
    _, flood = await loop.create_connection(lambda: Flood(end), HOST, end.port)
    await flood.closed.wait()


# With streams


async def _receive_plain(parent: Parent, _end: End) -> None:
    done: asyncio.Future[_Counted] = asyncio.get_running_loop().create_future()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done.set_result(await _count(reader))
        writer.close()

    server = await asyncio.start_server(read, HOST, 0, limit=_BUFFER_BYTES)
    parent.say(server.sockets[0].getsockname()[1])
    parent.say(await done)
    server.close()


async def _count(reader: asyncio.StreamReader) -> _Counted:
    frames, began_s, spent_s = 0, time.perf_counter(), time.process_time()
    try:
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            await reader.readexactly(length)
            frames += 1
    except asyncio.IncompleteReadError:
        return _counted(frames, began_s, spent_s)


async def _send_plain(_parent: Parent, end: End) -> None:
    _, writer = await asyncio.open_connection(HOST, end.port)
    payload, pack = bytes(end.frame_bytes), _LENGTH.pack
    until_s = time.perf_counter() + end.seconds
    while time.perf_counter() < until_s:
        for _ in range(_frames_per_turn(end.frame_bytes)):
            writer.write(pack(len(payload)) + payload)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _echo(parent: Parent, _end: End) -> None:
    done = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await _read_frame(reader))
        except asyncio.IncompleteReadError:
            writer.close()
            done.set()

    server = await asyncio.start_server(answer, HOST, 0)
    parent.say(server.sockets[0].getsockname()[1])
    await done.wait()
    server.close()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(_LENGTH.size)
    return header + await reader.readexactly(_LENGTH.unpack(header)[0])


async def _ping(parent: Parent, end: End) -> None:
    reader, writer = await asyncio.open_connection(HOST, end.port)
    frame = _LENGTH.pack(end.frame_bytes) + bytes(end.frame_bytes)
    round_trips_ns: list[int] = []
    until_ns = time.perf_counter_ns() + int(end.seconds * 1e9)
    while (sent_ns := time.perf_counter_ns()) < until_ns:
        writer.write(frame)
        await _read_frame(reader)
        round_trips_ns.append(time.perf_counter_ns() - sent_ns)
    writer.close()
    round_trips_ns.sort()
    parent.say({"p50_ms": percentile(round_trips_ns, 50) / 1e6, "count": len(round_trips_ns)})


def _counted(frames: int, began_s: float, spent_s: float) -> _Counted:
    seconds, processor_s = time.perf_counter() - began_s, time.process_time() - spent_s
    return {"frames": frames, "seconds": seconds, "processor_s": processor_s}


def _frames_per_turn(frame_bytes: int) -> int:
    return max(1, _TURN_BYTES // (frame_bytes + _LENGTH.size))


if __name__ == "__main__":
    # What ratios refer to is what anybody would write, in a process as the system made it.
    is_tuned = sys.argv[1].endswith("coalesced")
    play(
        End,
        run if is_tuned else run_untuned,
        receive_plain=_receive_plain,
        receive_ping=_echo,
        receive_coalesced=_receive_coalesced,
        send_plain=_send_plain,
        send_ping=_ping,
        send_coalesced=_send_coalesced,
    )
