"""A Spark session that is ready for topics.

    spark = session("local[2]")
    spark.readStream.format("quorate").option("cluster", "cluster") ...

Any other session finds the format too (`pyspark_quorate`). This one is told all that it would
otherwise guess wrongly on a machine like this one: which Java and which Python to run, that a
cluster on the loopback stays there, that nobody watches its web pages, and that times are UTC. Its
own messages go to files in a directory and not to the terminal of whoever runs a job.

Executors elsewhere need this package and what it depends on. With `ship_package`, the package
itself is sent along, and only what it depends on must be installed there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import py_compile
import re
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import quorate
from quorate.core.errors import ConfigError, QuorateError
from quorate.pipeline.failures import cause_of, spark_errors
from quorate.pipeline.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# How long a master has to take a connection.
ANSWER_S_MAX: Final = 5.0
# Each shuffle partition of a stateful query is a store of its own for as long as its checkpoint
# lives, so Spark's 200 are too many unless somebody asked for them.
REMOTE_PARTITIONS: Final = 16
POLLING_DELAY: Final = "50ms"
SPARK_LOG: Final = "spark.log"
# What Java and Python workers write to their standard error.
PROCESS_LOG: Final = "processes.log"

_log = logging.getLogger("quorate.pipeline")

_ALLOWED: Final = "local, local[N], local[*], spark://HOST:PORT, yarn, or k8s://https://HOST:PORT"
_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>\*|[1-9]\d*)(?:,\s*[1-9]\d*)?\])?")
_STANDALONE: Final = re.compile(r"spark://(?P<masters>[^/,]+:\d+(?:,[^/,]+:\d+)*)")
_LOG4J: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/{name}
appender.file.filePattern = {directory}/{name}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


class SparkStartError(QuorateError):
    """Spark could not be started, or its master does not answer."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Master:
    """Where executors run."""

    url: str
    is_loopback: bool
    # Of a local master, how many tasks run at once.
    cores: int | None = None
    # Addresses of which one must answer.
    addresses: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def parse(url: str) -> Master:
        if local := _LOCAL.fullmatch(url):
            cores = local["cores"] or "1"
            return Master(url, True, (os.cpu_count() or 1) if cores == "*" else int(cores))
        if standalone := _STANDALONE.fullmatch(url):
            addresses = tuple(map(_address, standalone["masters"].split(",")))
            here = all(host in (LOOPBACK, "localhost") for host, _ in addresses)
            return Master(url, here, addresses=addresses)
        if url == "yarn":
            return Master(url, False)
        parts = urlsplit(url.removeprefix("k8s://"))
        if url.startswith("k8s://") and parts.scheme in ("http", "https") and parts.hostname:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return Master(url, False, addresses=((parts.hostname, port),))
        raise ConfigError(f"the master is {url!r}, but it must be {_ALLOWED}")

    def require_answer(self) -> None:
        """Spark would try for minutes before it says the same."""
        if self.url == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
            raise ConfigError(
                "Spark finds YARN through its configuration: set HADOOP_CONF_DIR or YARN_CONF_DIR "
                "to the directory where yarn-site.xml is"
            )
        causes = []
        for address in self.addresses:
            try:
                socket.create_connection(address, timeout=ANSWER_S_MAX).close()
                return
            except OSError as error:
                causes.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        if causes:
            raise SparkStartError(
                f"nobody answers at the master {self.url} ({'; '.join(causes)}); is it running?"
            )


def session(
    master: str = "local[*]",
    *,
    app_name: str = "quorate",
    settings: Mapping[str, str] | None = None,
    log_directory: Path | None = None,
    ship_package: bool = False,
    tell: Callable[[str], None] | None = None,
) -> SparkSession:
    """The Spark session of this process.

    `settings` are Spark's own, and go before what is set here. Without a directory for them,
    Spark's messages go when this process does. A process has one session at a time; asking for
    the same master again hands out the one that runs. That is what a thread does that is to start
    queries which publish. `tell` hears on which Java it runs.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    wanted = Master.parse(master)
    running = SparkContext._active_spark_context
    if running is not None and running.master != master:
        raise ConfigError(
            f"this process has a Spark session on {running.master} already, and can have one on "
            f"{master} only after that was stopped"
        )
    if running is None:
        wanted.require_answer()
    chosen = {**_defaults(wanted, settings or {}), **(settings or {})}
    with _as_one_sentence(master):
        if SparkContext._gateway is None:
            java = find_java()
            if tell is not None:
                tell(str(java))
            _set_environment(wanted, java)
            _launch_java({"spark.master": master, **chosen}, log_directory or _own_directory())
        builder = SparkSession.builder.master(master).appName(app_name)
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        if ship_package:
            spark.sparkContext.addPyFile(str(packed(_own_directory())))
        _have_logged(spark)
        # Whoever starts a query looks for the format of its sink in the session of the thread.
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)
    return spark


def packed(directory: Path) -> Path:
    """This package as a file that Python can import from, for `--py-files`.

    Beside each source is what this Python compiles from it, since nobody keeps what was compiled
    from such a file: each worker would do it again. Another Python passes over it.
    """
    source = Path(quorate.__file__).parent
    target = directory / f"quorate-{quorate.__version__}.zip"
    with (
        tempfile.TemporaryDirectory() as scratch,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in sorted(source.rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            name = Path("quorate", path.relative_to(source))
            archive.write(path, name)
            if path.suffix == ".py":
                compiled = py_compile.compile(
                    str(path),
                    str(Path(scratch, "compiled")),
                    dfile=str(name),
                    doraise=True,
                    invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
                )
                archive.write(str(compiled), name.with_suffix(".pyc"))
    return target


def _have_logged(spark: SparkSession) -> None:
    """When a query is stopped, a thread of Spark's would print that its other end is gone."""
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: _log.debug("accumulators", exc_info=True)


def _defaults(master: Master, settings: Mapping[str, str]) -> dict[str, str]:
    """What Spark is told unless somebody tells it otherwise."""
    remote = settings.get("spark.cores.max", str(REMOTE_PARTITIONS))
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(master.cores or remote),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        # How soon a query without anything to do asks again what is new. Spark's 10 ms cost a fifth
        # of a core for each query that waits.
        "spark.sql.streaming.pollingDelay": POLLING_DELAY,
        # Otherwise a query that does not end keeps whoever stops it waiting for ever.
        "spark.sql.streaming.stopTimeout": "60s",
    }
    if master.is_loopback:
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return chosen


def _set_environment(master: Master, java: Java) -> None:
    """What Spark's own scripts read; it has no other way to be told."""
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.is_loopback:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    else:
        # Executors elsewhere may have theirs in another place, and only their owner knows where.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _launch_java(settings: Mapping[str, str], directory: Path) -> None:
    """Start the driver's Java, with everything that it says in files."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    directory = directory.absolute()
    log4j = directory / "log4j2.properties"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        log4j.write_text(_LOG4J.format(directory=directory, name=SPARK_LOG))
    except OSError as error:
        raise ConfigError(
            f"Spark's messages cannot be written to {directory}: {error.strerror}"
        ) from None
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    options = conf.get("spark.driver.extraJavaOptions", "")
    ours = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    conf.set("spark.driver.extraJavaOptions", f"{options} {ours}".strip())
    with (directory / PROCESS_LOG).open("ab") as output:
        begin = output.tell()
        streams: dict[str, Any] = {"stdout": output, "stderr": output}
        # In a session of its own, so that a Ctrl-C ends a job through us and not under us.
        popen = {**streams, "start_new_session": True}
        try:
            gateway = launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            raise SparkStartError(
                f"Java did not start: {_first_words(directory / PROCESS_LOG, begin)}"
            ) from None
    SparkContext._ensure_initialized(gateway=gateway)


def _first_words(log: Path, begin: int) -> str:
    """The first line from there on that is more than a warning."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    return next((line for line in lines if line and "warning" not in line.lower()), "it is silent")


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _own_directory() -> Path:
    """A directory that is there as long as this process is."""
    _kept.append(tempfile.TemporaryDirectory(prefix="quorate-spark-"))
    return Path(_kept[-1].name)


@contextlib.contextmanager
def _as_one_sentence(master: str) -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        cause = cause_of(error)
        if "stopped SparkContext" in cause:
            # Spark gives up on a master in the background, and says so only in its log.
            cause = "what listens there does not answer as a Spark master of this version does"
        raise SparkStartError(f"Spark did not start on {master}: {cause}") from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
