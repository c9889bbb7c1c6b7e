"""A Spark standalone cluster on the loopback: a master and workers, each a process.

    with standalone_cluster(workers=2, drivers=1) as cluster:
        spark = session(cluster.url, settings=cluster.settings)
        cluster.workers[0].kill()

The package from PyPI has no script that starts a master, but the classes are there. Everything
ends with the block, and with this process if that is killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

from clusters import until
from net import free_ports
from quorate.pipeline.java import find_java

HOST = "127.0.0.1"
# The least that an executor starts with is somewhat above 450 MB.
EXECUTOR_MB = 512
# None of them lives long enough for what it would gain by compiling more, and cores are few.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PATIENCE_S = 120.0

# Ends groups of processes, one per line of its input, when the input ends: when we do.
_GUARD = """
import os, signal, sys
for group in sys.stdin.read().split():
    try:
        os.killpg(int(group), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@dataclass
class Process:
    """One process of the cluster, with all that it starts: they are a group."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    guard: subprocess.Popen[bytes]
    _running: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        assert self._running is None
        with self.log.open("ab") as output:
            self._running = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        assert self.guard.stdin is not None
        self.guard.stdin.write(f"{self._running.pid}\n".encode())
        self.guard.stdin.flush()

    def kill(self) -> None:
        """As a power cut would: at once, and with its executors."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None


@dataclass
class StandaloneCluster:
    """Where the master listens, and the workers."""

    url: str
    workers: list[Process]
    settings: dict[str, str]
    _page: str

    def alive(self) -> int:
        """How many workers the master counts on; none while it starts."""
        return int(self._state().get("aliveworkers", 0))

    def drivers(self) -> int:
        """How many programs have executors here."""
        return len(self._state().get("activeapps", ()))

    def _state(self) -> dict[str, Any]:
        """What the master tells on its page, which it may not have yet.

        When it has just begun to listen, it answers every address with its front page, and that
        is no JSON.
        """
        with (
            contextlib.suppress(OSError, json.JSONDecodeError),
            urllib.request.urlopen(self._page, timeout=5) as answer,
        ):
            state: dict[str, Any] = json.load(answer)
            return state
        return {}


@contextlib.contextmanager
def standalone_cluster(*, workers: int, drivers: int) -> Iterator[StandaloneCluster]:
    """A cluster whose workers are all known to the master.

    Each of so many drivers at a time has an executor of one core with each of the workers.
    """
    port, page = free_ports(2)
    url = f"spark://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="quorate-spark-") as folder, _guard() as guard:
        directory = Path(folder)
        environment = _environment(directory)
        master = Process(
            _class("master.Master", "--port", port, "--webui-port", page),
            environment,
            directory / "master.log",
            guard,
        )
        members = [
            Process(
                _worker(url, drivers, directory / f"work-{number}"),
                environment,
                directory / f"worker-{number}.log",
                guard,
            )
            for number in range(workers)
        ]
        settings = {
            "spark.cores.max": str(workers),
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.executor.memory": f"{EXECUTOR_MB}m",
        }
        cluster = StandaloneCluster(url, members, settings, f"http://{HOST}:{page}/json/")
        try:
            for process in (master, *members):
                process.start()
            until(lambda: cluster.alive() == workers, seconds=PATIENCE_S)
            yield cluster
        finally:
            for process in (*members, master):
                process.kill()


def _environment(directory: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LAUNCHER_OPTS": JAVA_OPTIONS,
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }


def _worker(url: str, executors: int, directory: Path) -> list[str]:
    room = ("--cores", executors, "--memory", f"{executors * EXECUTOR_MB}m")
    # A port of its own choosing for the page that nobody looks at.
    return _class("worker.Worker", "--webui-port", 0, *room, "--work-dir", directory, url)


def _class(name: str, *options: object) -> list[str]:
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    where = ("--host", HOST)
    return list(map(str, (script, f"org.apache.spark.deploy.{name}", *where, *options)))


@contextlib.contextmanager
def _guard() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True
    ) as guard:
        try:
            yield guard
        finally:
            # Only after everything has ended: numbers of processes are used again.
            guard.kill()
