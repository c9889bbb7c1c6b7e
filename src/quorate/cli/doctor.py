"""`quorate doctor`: whether this machine has what Quorate needs, and what to do if not."""

import contextlib
import ctypes
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from quorate import __file__ as package_file
from quorate.cli.directory import DEFAULT, Directory, SameDirectoryOption, on_shell, opened
from quorate.core import header
from quorate.core.cluster import FILE_VERSION
from quorate.core.errors import ConfigError
from quorate.crypto import evidence, proofs
from quorate.pipeline.java import find_java
from quorate.runtime import handshake
from quorate.runtime.files import CLUSTER_FILE
from quorate.runtime.founding import MARK_VERSION
from quorate.runtime.launcher import Launcher
from quorate.runtime.local import BASE_PORT, HOST, METRICS_PORT_OFFSET
from quorate.runtime.ports import free_base_port, is_free
from quorate.storage.store import FORMATS

PYTHON_MIN = (3, 11)
LOCAL_REPLICAS = 4
GB = 1_000_000_000
# Four replicas of a local cluster take some hundred megabytes, and Spark with its Java and its
# Python workers one or two gigabytes.
MEMORY_NEEDED, MEMORY_WISHED = GB // 2, 3 * GB
DISK_NEEDED, DISK_WISHED = GB, 10 * GB
SYNCS = 20
SYNC_BYTES = 4096
# A log syncs once per turn: with more than this, a publisher that waits for each receipt crawls.
SYNC_MS_WISHED = 30.0
# No disk writes this quickly: what was synced is in memory.
SYNC_MS_MIN = 0.01

_SPARK = ("pyspark", "py4j", "pandas", "pyarrow", "protobuf")
_TIME_ERROR = 5
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and in other cases than `ok`, what to do."""

    subject: str
    level: Literal["ok", "warning", "problem"]
    words: str


@app.command()
def doctor(
    named: Directory = None,
    directory: SameDirectoryOption = DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tell whether this machine has what Quorate needs, and what to do where it has not.

    Where there is no cluster in DIRECTORY, ports are those that `quorate init` would take, and the
    disk is that of the directory one is in. The exit code is 1 if something will not work.
    """
    chosen = named or directory
    # Only who names a cluster wants to hear that it is not there.
    is_there = (chosen / CLUSTER_FILE).is_file()
    launcher = opened(chosen) if named or chosen != DEFAULT or is_there else None
    place = launcher.directory if launcher else Path.cwd()
    found = list(_findings(launcher, place))
    if as_json:
        well = all(finding.level != "problem" for finding in found)
        typer.echo(json.dumps({"ok": well, "findings": list(map(asdict, found))}, indent=2))
    else:
        _print(found)
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


def _print(found: list[Finding]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for finding in found:
        level = Text(f"{finding.level:<8}", _STYLES[finding.level])
        console.print(Text.assemble(level, f" {finding.subject}: {finding.words}"))


def _findings(launcher: Launcher | None, place: Path) -> Iterator[Finding]:
    yield _python()
    yield from _spark()
    yield from _local_ports() if launcher is None else _ports_of(launcher)
    yield _disk(place)
    yield _sync(place)
    yield _memory()
    yield _clock(place)
    yield _formats()


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < PYTHON_MIN:
        return Finding("Python", "problem", f"{version} is too old: install Python 3.11 or later")
    return Finding("Python", "ok", version)


def _formats() -> Finding:
    """What this program writes and speaks. It reads these versions, and the ones before."""
    versions = {
        "protocol": handshake.VERSION,
        "batch": header.VERSION,
        "cluster file": FILE_VERSION,
        "founding mark": MARK_VERSION,
        **{each.kind: each.version for each in FORMATS},
        "proof": proofs.VERSION,
        "evidence": evidence.VERSION,
    }
    with contextlib.suppress(ImportError):
        # An extra brings pyarrow, without which there are no archives.
        from quorate.pipeline import archive

        versions["archive"] = archive.VERSION
    told = ", ".join(f"{kind} {version}" for kind, version in versions.items())
    return Finding("formats", "ok", told)


def _spark() -> Iterator[Finding]:
    """What only the pipeline needs, so that its absence is not a problem."""
    versions = {name: _version(name) for name in _SPARK}
    absent = [name for name, version in versions.items() if version is None]
    if absent:
        yield Finding(
            "Spark",
            "warning",
            f"{', '.join(absent)} not installed, and 'quorate pipeline' needs it: pip install "
            f"'quorate[spark]'",
        )
        return
    refused = [words for name, version in versions.items() if (words := _refusal(name, version))]
    if refused:
        words = f"{'; '.join(refused)}: pip install 'quorate[spark]'"
        yield Finding("Spark", "problem", words)
    else:
        words = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("Spark", "ok", words)
    yield _java()
    if shutil.which("bash") is None:
        words = "Spark's scripts need it, and it is not on the PATH: install it"
        yield Finding("bash", "problem", words)


def _java() -> Finding:
    try:
        return Finding("Java", "ok", str(find_java()).removeprefix("Java "))
    except ConfigError as error:
        return Finding("Java", "problem", str(error))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _refusal(package: str, version: str | None) -> str | None:
    """Words for a version outside of what this package was made for."""
    bounds = _bounds(package)
    numbers = _numbers(version or "")
    for sign, bound in re.findall(r"(>=|<)\s*([\d.]+)", bounds):
        is_within = numbers >= _numbers(bound) if sign == ">=" else numbers < _numbers(bound)
        if not is_within:
            return f"{package} is {version}, but it must be {bounds}"
    return None


def _bounds(package: str) -> str:
    requirements = metadata.requires("quorate") or []
    for requirement in requirements:
        name, bounds = re.match(r"([\w.-]+)\s*([^;]*)", requirement).groups()  # type: ignore[union-attr]
        if name.lower() == package:
            return str(bounds).strip()
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _local_ports() -> Iterator[Finding]:
    """Those that `quorate init` takes if nobody says otherwise."""
    taken = [
        port
        for number in range(LOCAL_REPLICAS)
        for port in (BASE_PORT + number, BASE_PORT + METRICS_PORT_OFFSET + number)
        if not is_free(HOST, port)
    ]
    if taken:
        yield Finding(
            "ports",
            "warning",
            f"{', '.join(map(str, taken))} taken, which a local cluster would use: "
            f"{on_shell('quorate', 'init', '--base-port', free_base_port())}",
        )
    else:
        words = f"{BASE_PORT} and on are free for a local cluster"
        yield Finding("ports", "ok", words)


def _ports_of(launcher: Launcher) -> Iterator[Finding]:
    for name in launcher.held:
        replica = launcher.replica(name)
        ports = [port for port in (replica.port, replica.metrics_port) if port is not None]
        if launcher.pid(name) is not None:
            yield Finding(f"ports of {name}", "ok", f"{_listed(ports)}, where it runs now")
            continue
        taken = [port for port in ports if not is_free(replica.host, port)]
        if taken:
            words = (
                f"{_listed(taken)} cannot be had at {replica.host}: another program has it, or the "
                f"address is not one of this machine; end that program or change {CLUSTER_FILE}"
            )
            yield Finding(f"ports of {name}", "problem", words)
        else:
            yield Finding(f"ports of {name}", "ok", f"{_listed(ports)} free")


def _listed(ports: list[int]) -> str:
    return " and ".join(map(str, ports))


def _disk(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    words = f"{free / GB:,.1f} GB free in {place}"
    if free < DISK_NEEDED:
        return Finding("disk", "problem", f"{words}, and a log needs some: make room")
    if free < DISK_WISHED:
        return Finding("disk", "warning", f"{words}: logs grow, so set a retention or make room")
    return Finding("disk", "ok", words)


def _sync(place: Path) -> Finding:
    try:
        each_ms = _sync_ms(place)
    except OSError as error:
        words = f"nothing can be written and synced in {place} ({error.strerror}): use another disk"
        return Finding("fsync", "problem", words)
    words = f"{each_ms:.2f} ms in {place}"
    if each_ms < SYNC_MS_MIN:
        return Finding(
            "fsync",
            "warning",
            f"{words}, which is memory and no disk: what is there goes with a power cut",
        )
    if each_ms > SYNC_MS_WISHED:
        return Finding(
            "fsync",
            "warning",
            f"{words}, and each receipt of a log waits for one: use a quicker disk, or another "
            f"fsync in the [cluster] table",
        )
    return Finding("fsync", "ok", words)


def _sync_ms(place: Path) -> float:
    took = []
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(os.urandom(SYNC_BYTES))
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def _memory() -> Finding:
    free = _memory_free()
    if free is None:
        return Finding("memory", "ok", "this system does not tell how much is free")
    words = f"{free / GB:,.1f} GB free"
    if free < MEMORY_NEEDED:
        return Finding("memory", "problem", f"{words}, and a local cluster takes more: free some")
    if free < MEMORY_WISHED:
        return Finding("memory", "warning", f"{words}: enough for a cluster, little for Spark")
    return Finding("memory", "ok", words)


def _memory_free() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _clock(place: Path) -> Finding:
    now = time.time()
    words = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    files = (Path(package_file), place / CLUSTER_FILE)
    newest = max(path.stat().st_mtime for path in files if path.exists())
    # A day, because a file may come from a machine in another mind.
    if newest > now + 86_400:
        return Finding("clock", "problem", f"{words} is before files were written: set the clock")
    if _kernel_says_unsynchronised():
        words = f"{words}, and the kernel says that nobody keeps it right: run an NTP client"
        return Finding("clock", "warning", words)
    return Finding("clock", "ok", words)


def _kernel_says_unsynchronised() -> bool:
    """What `adjtimex` answers when nothing is to be adjusted. Linux only."""
    adjust = getattr(ctypes.CDLL(None), "adjtimex", None)
    # More than a struct timex has, all zero: its first field says what to change.
    return adjust is not None and adjust(ctypes.create_string_buffer(512)) == _TIME_ERROR
