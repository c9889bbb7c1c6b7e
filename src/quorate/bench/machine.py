"""On which machine a benchmark ran."""

import os
import platform
from importlib import metadata
from pathlib import Path


def describe() -> dict[str, str]:
    """What a reader needs to know of it, and nothing that says whose it is."""
    uvloop = _version_of("uvloop")
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count() or "unknown"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "event_loop": "asyncio" if uvloop == "unknown" else f"uvloop {uvloop}",
        "quorate": _version_of("quorate"),
    }


def sentence() -> str:
    """The same in one line, for the foot of a table or a plot."""
    known = describe()
    return (
        f"{known['cores']} cores of {known['processor']}, {known['system']}, "
        f"Python {known['python']}, {known['event_loop']}, every process on this machine"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
