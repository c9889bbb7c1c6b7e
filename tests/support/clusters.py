"""Real clusters on the loopback: replicas as processes, in a directory that goes away.

    with running_cluster(topics={"alerts": {"broadcast": "vote"}}) as cluster:
        cluster.launcher.stop("r1", kill=True)
        said = quorate("status", cluster.directory)

Tests that use it carry `@pytest.mark.xdist_group("processes")`, so that they do not compete.
"""

import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeVar
from unittest import mock

from quorate.cli import main as command_line
from quorate.core.contract import Contract
from quorate.core.errors import ConfigError
from quorate.core.stores import KafkaStore
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import (
    LocalCluster,
    make_local_cluster,
    refuse_busy_ports,
    write_local_cluster,
)

PATIENCE_S = 30.0
LOOK_EVERY_S = 0.02

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class TestCluster:
    """A cluster directory, and the processes that belong to it."""

    __test__ = False

    directory: Path
    launcher: Launcher

    @property
    def names(self) -> list[str]:
        return [replica.name for replica in self.launcher.cluster.replicas]

    def revive(self) -> None:
        """Bring back whatever a test ended or paused."""
        for name in self.launcher.held:
            if self.launcher.is_paused(name):
                self.launcher.stop(name)
        self.launcher.start_all()


@contextlib.contextmanager
def running_cluster(
    *,
    topics: Mapping[str, Mapping[str, object]] | None = None,
    replicas: int = 4,
    f: int = 1,
    clients: Sequence[str] = ("alice", "bob"),
    link_security: Literal["tls", "mac"] = "mac",
    start: bool = True,
    launcher: Callable[[Path], Launcher] = Launcher,
    kafkas: Sequence[KafkaStore] = (),
) -> Iterator[TestCluster]:
    """A local cluster with these topics (the starter topics if none are given).

    Its processes end with the block, however that ends. With `start=False` they do not begin,
    but those that the block itself starts in the directory are ended all the same.
    """
    contracts = None
    if topics is not None:
        contracts = {name: Contract.parse(name, table) for name, table in topics.items()}
    with tempfile.TemporaryDirectory(prefix="quorate-") as folder:
        directory = Path(folder) / "cluster"
        local = _with_free_ports(
            lambda base_port: make_local_cluster(
                replicas=replicas,
                f=f,
                clients=clients,
                link_security=link_security,
                base_port=base_port,
                topics=contracts,
                kafkas=kafkas,
            )
        )
        write_local_cluster(directory, local)
        launched = launcher(directory)
        with _ended_even_if_we_are_killed(directory):
            try:
                if start:
                    launched.start_all()
                yield TestCluster(directory, launched)
            finally:
                launched.stop_all()


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def quorate(*arguments: object, stdin: bytes | None = b"") -> Outcome:
    """Run a `quorate` command in this process, as a user would without a terminal.

    Where there is no standard input, the shell has closed it.
    """
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("sys.argv", ["quorate", *map(str, arguments)]),
        mock.patch("sys.stdin", None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            command_line.main()
            code: object = 0
        except SystemExit as ended:
            code = ended.code
    return Outcome(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def quorate_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a `quorate` command in a process of its own, which ends with the block at the latest.

    It also ends when a test has waited for it too long: reading from it then finds the end.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "quorate", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    patience = threading.Timer(PATIENCE_S, process.kill)
    patience.start()
    try:
        yield process
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def line_with(stream: IO[str] | None, *words: str) -> str:
    """The next line of the stream in which all these words stand."""
    assert stream is not None
    for line in stream:
        if all(word in line for word in words):
            return line
    raise AssertionError(f"the stream ended before a line with {words} came")


def until(condition: Callable[[], _Found], *, seconds: float = PATIENCE_S) -> _Found:
    """Wait until the condition finds something, and return that; a test that hangs fails."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(LOOK_EVERY_S)
    return found


@contextlib.contextmanager
def _ended_even_if_we_are_killed(directory: Path) -> Iterator[None]:
    """A process that waits for the end of this one, and then ends the cluster if it is there."""
    script = (
        "import sys; sys.stdin.read(); from pathlib import Path; "
        "from quorate.runtime.launcher import Launcher; Launcher(Path(sys.argv[1])).stop_all()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script, str(directory)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as guard:
        try:
            yield
        finally:
            guard.kill()


def _ports() -> range:
    """Those of this worker: another one must not take what a cluster that is stopped will want
    again. Benchmarks have theirs above."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 10_000 + worker % 8 * 1_200
    return range(first, first + 1_000, 20)


def _with_free_ports(make: Callable[[int], LocalCluster]) -> LocalCluster:
    """A cluster on ports that are free now, and that no system hands out by itself."""
    for _ in range(50):
        local = make(random.choice(_ports()))
        with contextlib.suppress(ConfigError):
            refuse_busy_ports(local.cluster)
            return local
    raise AssertionError("no free ports")
