"""Starting and stopping replicas on this machine, each as a process of its own.

A cluster directory remembers its processes in `run/NAME.pid` and keeps what they say in
`run/NAME.log`, so that `quorate replica NAME stop` finds from another terminal what
`quorate up` started. A process is only ever signalled after a look at what it is. Where the
parties have machines of their own, each directory holds the keys of its own replicas only, and
those are the ones that can be started there.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from signal import Signals
from typing import BinaryIO, Literal, NoReturn

from quorate.core.cluster import NONCE_BYTES, Cluster, Replica
from quorate.core.errors import ConfigError, QuorateError
from quorate.runtime.files import (
    CLUSTER_FILE,
    FOUNDING_FILE,
    cluster_file,
    data_directory,
    key_file,
    read_cluster,
    read_founding,
    read_identity,
    write_cluster,
)
from quorate.runtime.founding import (
    LostDiskError,
    check_mark,
    check_preparation,
    check_restoration,
    running_others,
    write_mark,
)
from quorate.runtime.loop import run
from quorate.runtime.ports import is_listening

START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 5.0
LOOK_EVERY_S = 0.02
LOG_BYTES_READ = 64 * 1024
# What tells a replica to end with its standard input.
UNTIL_INPUT_ENDS = "--until-input-ends"

_HAS_PROC = Path("/proc/self/cmdline").exists()


class LaunchError(QuorateError):
    """A replica did not start, or could not be stopped."""


class Launcher:
    """The processes of one cluster directory.

    Those of a launcher that is `tied` end with the process that started them, also if it is killed.
    """

    def __init__(self, directory: Path, *, tied: bool = False) -> None:
        # The full path, because a process is recognised by the cluster file that it was given.
        self.directory = cluster_file(directory).parent.resolve()
        self.cluster: Cluster = read_cluster(self.directory / CLUSTER_FILE)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._tied = tied

    def replica(self, name: str) -> Replica:
        for replica in self.cluster.replicas:
            if replica.name == name:
                return replica
        known = ", ".join(replica.name for replica in self.cluster.replicas)
        raise ConfigError(f"there is no replica '{name}'; this cluster has {known}")

    @property
    def held(self) -> list[str]:
        """The replicas that can run here, because their private keys are here."""
        names = [replica.name for replica in self.cluster.replicas]
        return [name for name in names if key_file(self.directory, name).exists()]

    def start(self, name: str) -> None:
        """Start one replica; it is up when its port answers (`wait_until_up`)."""
        self._prepare(name)
        # Both files are open before there is a process that nobody could find without them.
        with self._opened(name, "log", "ab") as output, self._opened(name, "pid", "wb") as noted:
            child = subprocess.Popen(
                [*self._command(name), *([UNTIL_INPUT_ENDS] if self._tied else [])],
                # Our end of the pipe is closed when we end, in whatever way.
                stdin=subprocess.PIPE if self._tied else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._children[name] = child
            noted.write(b"%d" % child.pid)

    @property
    def lost(self) -> dict[str, str]:
        """The replicas here that have lost their disks, and what to do about each."""
        found = {}
        for name in self.held:
            try:
                check_mark(data_directory(self.directory, name), self.cluster, name)
            except LostDiskError as error:
                found[name] = str(error)
        return found

    @property
    def ignored(self) -> list[str]:
        """What was edited in the cluster file, and does not count."""
        lost, found = self.lost, dict[str, None]()
        for name in self.held:
            if name not in lost:
                data = data_directory(self.directory, name)
                found |= dict.fromkeys(check_mark(data, self.cluster, name)[1])
        return [*found]

    def found(self, name: str, *, restores: bool = False) -> None:
        """Mark the disk of a replica as that of this cluster: a new one, or one for a lost one."""
        replica, data = self.replica(name), data_directory(self.directory, name)
        key = key_file(self.directory, name)
        if not key.exists():
            raise LaunchError(f"{name} does not run here: its private keys would be in {key}")
        if data.exists() and any(data.iterdir()):
            raise LaunchError(
                f"{name} has a disk already, {data}: if it shall have a new one, move that away"
            )
        others = self._others_that_ran(name)
        (check_restoration if restores else check_preparation)(self.cluster, replica, others)
        write_mark(data, read_founding(self.directory / CLUSTER_FILE, self.cluster))

    def found_anew(self) -> Path:
        """Write the file of another cluster with the same members; where the one of before is."""
        for name in self.held:
            data = data_directory(self.directory, name)
            if data.exists() and any(data.iterdir()):
                raise LaunchError(
                    f"{data} is not empty, so that the cluster is not gone; move the disks of all "
                    "replicas away first if it is to begin anew"
                )
            check_preparation(self.cluster, self.replica(name), self._others_that_ran(name))
        file = self.directory / CLUSTER_FILE
        before = file.with_name(f"cluster-{self.cluster.identity.hex()[:16]}.toml")
        file.rename(before)
        (self.directory / FOUNDING_FILE).unlink(missing_ok=True)
        self.cluster = self.cluster.founded_anew(secrets.token_bytes(NONCE_BYTES))
        write_cluster(file, self.cluster)
        for name in self.held:
            write_mark(data_directory(self.directory, name), self.cluster)
        return before

    def become(self, name: str) -> NoReturn:
        """Turn this very process into the replica, for whoever supervises it."""
        self._prepare(name)
        with self._opened(name, "pid", "wb") as noted:
            noted.write(b"%d" % os.getpid())
        command = self._command(name)
        os.execv(command[0], command)

    def start_all(self) -> None:
        """Start every replica whose keys and disk are here and that does not run yet."""
        lost = self.lost
        names = [n for n in self.held if self.pid(n) is None and n not in lost]
        if lost and len(lost) == len(self.held):
            raise LaunchError(next(iter(lost.values())))
        for name in names:
            self.start(name)
        for name in names:
            self.wait_until_up(name)

    def wait_until_up(self, name: str) -> None:
        replica = self.replica(name)
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.pid(name) is None:
                raise LaunchError(f"{name} ended while starting: {self.last_words(name)}")
            if is_listening(replica.host, replica.port):
                return
            time.sleep(LOOK_EVERY_S)
        raise LaunchError(
            f"{name} did not come up within {START_SECONDS_MAX:g} s: {self.last_words(name)}"
        )

    def stop(self, name: str, *, kill: bool = False) -> None:
        """End one replica, at once with `kill`."""
        pid = self._require_running(name)
        self._send(name, Signals.SIGKILL if kill else Signals.SIGTERM)
        # A process that is paused ends only once it goes on.
        self._send(name, Signals.SIGCONT)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while not _has_ended(pid):
            if time.monotonic() > deadline:
                self._send(name, Signals.SIGKILL)
                deadline = time.monotonic() + STOP_SECONDS_MAX
            time.sleep(LOOK_EVERY_S)
        child = self._children.get(name)
        if child is not None and child.stdin is not None:
            child.stdin.close()
        self._file(name, "pid").unlink(missing_ok=True)

    def stop_all(self, names: Iterable[str] | None = None) -> None:
        """End these replicas, or every one, if they run here, all at the same time."""
        if names is None:
            names = (replica.name for replica in self.cluster.replicas)
        running = [name for name in names if self.pid(name)]
        for name in running:
            self._send(name, Signals.SIGTERM)
            self._send(name, Signals.SIGCONT)
        for name in running:
            with contextlib.suppress(LaunchError):
                self.stop(name)

    def signal(self, name: str, number: Signals) -> None:
        self._require_running(name)
        self._send(name, number)

    def pid(self, name: str) -> int | None:
        """The process of this replica, if it runs."""
        child = self._children.get(name)
        if child is not None and child.poll() is None:
            return child.pid
        # Ours has ended, if there was one; another terminal may have started it again.
        try:
            pid = int(self._file(name, "pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if self._is_ours(pid, name) else None

    def is_paused(self, name: str) -> bool:
        """Whether its process is there, but was told to do nothing (SIGSTOP)."""
        pid = self.pid(name)
        return pid is not None and _state_of(pid).startswith("T")

    def last_words(self, name: str) -> str:
        """The last line of its log, and where the rest of it is."""
        log = self._file(name, "log")
        try:
            lines = log.read_bytes()[-LOG_BYTES_READ:].decode(errors="replace").splitlines()
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last} (its log: {log})"

    # Parts

    def _file(self, name: str, kind: str) -> Path:
        return self.directory / "run" / f"{name}.{kind}"

    def _command(self, name: str) -> list[str]:
        return [
            sys.executable, "-P", "-m", "quorate.runtime.replica",
            "--cluster", str(self.directory / CLUSTER_FILE),
            "--name", name,
            "--key", str(key_file(self.directory, name)),
            "--data", str(data_directory(self.directory, name)),
        ]  # fmt: skip

    def _others_that_ran(self, name: str) -> list[str]:
        """The other replicas that run under this identity, or have run with their disks here."""
        lost = self.lost
        found = [
            each
            for each in self.held
            if each not in (name, *lost)
            and check_mark(data_directory(self.directory, each), self.cluster, each)[0].has_run
        ]
        identity = read_identity(key_file(self.directory, name))
        return [*dict.fromkeys((*found, *run(running_others(self.cluster, identity))))]

    def _prepare(self, name: str) -> None:
        replica, pid = self.replica(name), self.pid(name)
        if pid is not None:
            raise LaunchError(f"{name} is running already, as process {pid}")
        key = key_file(self.directory, name)
        if not key.exists():
            raise LaunchError(f"{name} cannot run here: its private keys would be in {key}")
        check_mark(data_directory(self.directory, name), self.cluster, name)
        for port in (replica.port, replica.metrics_port):
            if port is not None and is_listening(replica.host, port):
                raise LaunchError(
                    f"{name} cannot start: another program listens on port {port} of "
                    f"{replica.host} already"
                )

    def _opened(self, name: str, kind: str, mode: Literal["ab", "wb"]) -> BinaryIO:
        path = self._file(name, kind)
        try:
            path.parent.mkdir(exist_ok=True)
            return path.open(mode)
        except OSError as error:
            raise LaunchError(
                f"{name} cannot start: {path} cannot be written: {error.strerror}"
            ) from error

    def _require_running(self, name: str) -> int:
        pid = self.pid(self.replica(name).name)
        if pid is None:
            raise LaunchError(f"{name} is not running here")
        return pid

    def _send(self, name: str, number: Signals) -> None:
        """Signal the process, unless it has ended in the meantime."""
        pid = self.pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _is_ours(self, pid: int, name: str) -> bool:
        """A pid may have been given to another program since it was written down."""
        return " ".join(self._command(name)[2:]) in _command_of(pid)


def _command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    return _process_file(pid, "cmdline").replace("\0", " ") if _HAS_PROC else _ps(pid, "args")


def _state_of(pid: int) -> str:
    """One letter, such as R for running or T for stopped; empty if it has ended."""
    # The name of the program, in brackets, may hold anything.
    after_name = _process_file(pid, "stat").rpartition(")")[2] if _HAS_PROC else _ps(pid, "state")
    return after_name.strip()


def _has_ended(pid: int) -> bool:
    """Whether nothing is left of a process, or only its exit code."""
    return _state_of(pid)[:1] in ("", "Z", "X") and _threads_of(pid) <= 1


def _threads_of(pid: int) -> int:
    """How many are left: the first one may have ended while others have not."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) if _HAS_PROC else 0
    except OSError:
        return 0


def _process_file(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _ps(pid: int, column: str) -> str:
    command = ["ps", "-ww", "-o", f"{column}=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
