"""Starting and stopping the replicas of a local cluster, each as a process of its own.

A cluster directory remembers its processes in `run/NAME.pid` and keeps what they say in
`run/NAME.log`, so that `quorate replica NAME stop` finds from another terminal what
`quorate up` started. A process is only ever signalled after a look at what it is.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from quorate.core.cluster import Cluster, Replica
from quorate.core.errors import ConfigError, QuorateError
from quorate.runtime.files import CLUSTER_FILE, cluster_file, key_file, read_cluster
from quorate.runtime.ports import is_listening

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 5.0
LOG_LINES_SHOWN = 5


class LaunchError(QuorateError):
    """A replica did not start, or could not be stopped."""


class Launcher:
    """The processes of one cluster directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = cluster_file(directory).parent
        self.cluster: Cluster = read_cluster(self.directory / CLUSTER_FILE)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def replica(self, name: str) -> Replica:
        for replica in self.cluster.replicas:
            if replica.name == name:
                return replica
        known = ", ".join(replica.name for replica in self.cluster.replicas)
        raise ConfigError(f"there is no replica '{name}'; this cluster has {known}")

    def start(self, name: str) -> None:
        """Start one replica; it is up when its port answers (`wait_until_up`)."""
        replica = self.replica(name)
        if self.pid(name) is not None:
            raise LaunchError(f"{name} is running already, as process {self.pid(name)}")
        run = self.directory / "run"
        run.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "quorate.runtime.replica",
            "--cluster", str(self.directory / CLUSTER_FILE),
            "--name", replica.name,
            "--key", str(key_file(self.directory, replica.name)),
        ]  # fmt: skip
        with (run / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._children[name] = child
        (run / f"{name}.pid").write_text(str(child.pid))

    def start_all(self) -> None:
        for replica in self.cluster.replicas:
            self.start(replica.name)
        for replica in self.cluster.replicas:
            self.wait_until_up(replica.name)

    def wait_until_up(self, name: str) -> None:
        replica = self.replica(name)
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if is_listening(replica.host, replica.port):
                return
            if self.pid(name) is None:
                raise LaunchError(f"{name} ended while starting; its last words: {self.tail(name)}")
            time.sleep(0.02)
        raise LaunchError(
            f"{name} did not come up within {START_SECONDS_MAX:g} s: {self.tail(name)}"
        )

    def stop(self, name: str, *, kill: bool = False) -> None:
        """End one replica, at once with `kill`."""
        pid = self.pid(name)
        if pid is None:
            raise LaunchError(f"{name} is not running")
        self.signal(name, signal.SIGKILL if kill else signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.pid(name) is not None:
            if time.monotonic() > deadline:
                self.signal(name, signal.SIGKILL)
                deadline = time.monotonic() + STOP_SECONDS_MAX
            time.sleep(0.02)
        (self.directory / "run" / f"{name}.pid").unlink(missing_ok=True)

    def stop_all(self) -> None:
        for name in [replica.name for replica in self.cluster.replicas]:
            if self.pid(name) is not None:
                self.signal(name, signal.SIGCONT)
                self.signal(name, signal.SIGTERM)
        for name in [replica.name for replica in self.cluster.replicas]:
            if self.pid(name) is not None:
                self.stop(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        pid = self.pid(name)
        if pid is None:
            raise LaunchError(f"{name} is not running")
        os.kill(pid, number)

    def pid(self, name: str) -> int | None:
        """The process of this replica, if it runs."""
        child = self._children.get(name)
        if child is not None:
            return child.pid if child.poll() is None else None
        try:
            pid = int((self.directory / "run" / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if self._is_ours(pid, name) else None

    def tail(self, name: str) -> str:
        try:
            lines = (self.directory / "run" / f"{name}.log").read_text().splitlines()
        except OSError:
            return "(none)"
        return " / ".join(lines[-LOG_LINES_SHOWN:]) or "(none)"

    def _is_ours(self, pid: int, name: str) -> bool:
        """A pid may have been given to another program since it was written down."""
        words = _command_of(pid)
        return "quorate.runtime.replica" in words and name in words


def _command_of(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            return []
    command = ["ps", "-o", "args=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
