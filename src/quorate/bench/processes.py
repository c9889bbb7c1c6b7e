"""Child processes that take part in an experiment, and how parent and child talk.

Each line in either direction is one JSON value. A child whose parent goes away hears the end of
its input and ends too, so an interrupted benchmark leaves nobody behind.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import IO, Any, Self

import msgspec

from quorate.core.errors import QuorateError
from quorate.runtime.loop import run

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 5.0
LINE_BYTES_MAX = 16 * 1024 * 1024
_ERROR_BYTES_SHOWN = 2000


class BenchError(QuorateError):
    """An experiment could not be carried through."""


class Worker:
    """A module of ours that runs as a process of its own, as its parent sees it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.name = name
        self._process = process
        self._errors = errors

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, message: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def hear(self, timeout_s: float, kind: Any = Any) -> Any:
        """The next thing that the child says, as this type; its last words if it ended instead."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), timeout_s)
        except TimeoutError:
            raise BenchError(f"{self.name} said nothing for {timeout_s:g} s") from None
        if not line:
            raise BenchError(f"{self.name} ended early: {self._last_words()}")
        return msgspec.json.decode(line, type=kind)

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Let the child end by itself, as the end of its input tells it to; insist if need be."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), seconds_max)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read()[-_ERROR_BYTES_SHOWN:].decode(errors="replace").splitlines()
        return lines[-1] if lines else "it gave no reason"


async def started(stack: AsyncExitStack, module: str, role: str, task: msgspec.Struct) -> Worker:
    """A worker that knows its role and its task, and that stops when the stack ends."""
    errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, role, msgspec.json.encode(task).decode()),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=errors,
        limit=LINE_BYTES_MAX,
    )
    worker = Worker(f"{module.rpartition('.')[2]} {role}", process, errors)
    stack.push_async_callback(worker.stop)
    return worker


async def ready(
    stack: AsyncExitStack, module: str, *roles: tuple[str, msgspec.Struct]
) -> list[Worker]:
    """Start workers for several roles, and wait until all of them have said that they may begin."""
    workers = [await started(stack, module, role, task) for role, task in roles]
    for worker in workers:
        await worker.hear(START_SECONDS_MAX)
    return workers


class Parent:
    """The other end of a `Worker`, inside the child."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    @classmethod
    async def connect(cls) -> Self:
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
        )
        return cls(reader)

    def say(self, message: object) -> None:
        sys.stdout.write(msgspec.json.encode(message).decode() + "\n")
        sys.stdout.flush()

    async def hear(self, kind: Any = Any) -> Any:
        """What the parent says next, as this type; None when it has nothing more to say."""
        line = await self._reader.readline()
        return msgspec.json.decode(line, type=kind) if line else None


def play(
    task: type,
    in_loop: Callable[[Coroutine[Any, Any, None]], None] = run,
    **roles: Callable[[Parent, Any], Coroutine[Any, Any, None]],
) -> None:
    """Be a child: play the role that the parent named, with the task that it gave."""
    role, encoded = sys.argv[1:]

    async def played() -> None:
        await roles[role](await Parent.connect(), msgspec.json.decode(encoded, type=task))

    in_loop(played())
