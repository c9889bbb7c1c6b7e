"""Real Apache Kafka brokers on this machine, for tests and benchmarks.

Each broker is a cluster of its own: one node in KRaft's combined mode, on loopback, with a small
heap. The jars are what Maven resolves from a small `pom.xml`; the class path that came out is kept
in the user's cache directory, so that Maven is asked once. A broker whose parent is killed is ended
by a watcher that hears the end of its input: nothing stays behind.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quorate.bench.processes import BenchError
from quorate.core.limits import SEALED_BYTES_MAX

VERSION = "4.3.1"
# What Kafka's own API for logging is bound to; it writes to stderr, which is the broker's log.
_LOGGING_VERSION = "1.7.36"
_HOST = "127.0.0.1"
RESOLVE_SECONDS_MAX = 300.0
FORMAT_SECONDS_MAX = 60.0
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 10.0
HEAP_MB = 256
# The quick compiler alone: most of what a broker does at first it does once.
QUICK_START = ("-XX:TieredStopAtLevel=1",)
_LOG_BYTES_SHOWN = 2000

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>quorate</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>{_LOGGING_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""

Say = Callable[[str], None]


class KafkaUnavailableError(BenchError):
    """There can be no Kafka on this machine: no Java, no Maven, or nowhere to get it from."""


class KafkaBrokerError(BenchError):
    """A broker did not start, or did not answer."""


@dataclass(slots=True)
class KafkaBroker:
    """One Kafka cluster that consists of one node.

    `port` is for clients, `controller_port` for the node itself. `settings` are added to its
    server.properties, and win. After `stop`, `start` brings it back with what it had.
    """

    directory: Path
    port: int
    controller_port: int
    heap_mb: int = HEAP_MB
    settings: Mapping[str, str] = field(default_factory=dict)
    say: Say | None = None
    # How its own client gets in, where the settings above ask for more than an address.
    client_settings: Mapping[str, str] = field(default_factory=dict)
    java_options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = None
    _watcher: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{_HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process, if it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start its process; it is up when a client got an answer (`wait_until_up`)."""
        if self.pid is not None:
            raise KafkaBrokerError(f"the Kafka broker on port {self.port} is running already")
        class_path = kafka_class_path(self.say)
        self._format(class_path)
        with (self.directory / "broker.log").open("ab") as log:
            process = subprocess.Popen(
                self._java(class_path, "kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process, self._watcher = process, watched(process.pid)

    def wait_until_up(self) -> None:
        """Until a client of its own has been told who is in the cluster."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + START_SECONDS_MAX
        client = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "reconnect.backoff.max.ms": 200,
                **self.client_settings,
            }
        )
        while True:
            if self.pid is None:
                raise KafkaBrokerError(
                    f"the Kafka broker on port {self.port} ended while starting: "
                    f"{self.last_words()}"
                )
            try:
                if client.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise KafkaBrokerError(
                    f"the Kafka broker on port {self.port} did not answer within "
                    f"{START_SECONDS_MAX:g} s: {self.last_words()}"
                )

    def stop(self, *, kill: bool = False) -> None:
        """End it, at once with `kill`. It does not mind if it has ended already."""
        process, watcher = self._process, self._watcher
        if process is None or watcher is None:
            return
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        # A process that is paused ends only once it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        watcher.kill()
        watcher.wait()
        if watcher.stdin is not None:
            watcher.stdin.close()
        self._process = self._watcher = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, such as SIGSTOP and SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def last_words(self) -> str:
        """The end of its log, and where that is."""
        log = self.directory / "broker.log"
        try:
            lines = log.read_bytes()[-_LOG_BYTES_SHOWN:].decode(errors="replace").splitlines()
        except OSError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last} (its log: {log})"

    # Parts

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _format(self, class_path: str) -> None:
        """A data directory that Kafka takes for its own, if there is none yet."""
        data = self.directory / "data"
        if (data / "meta.properties").exists():
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = {**self._defaults(data), **self.settings}
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._properties.write_text("".join(lines))
        identity = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java(
            class_path, "kafka.tools.StorageTool", "format", "--standalone",
            f"--cluster-id={identity}", "--config", str(self._properties),
        )  # fmt: skip
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=FORMAT_SECONDS_MAX
            )
        except subprocess.TimeoutExpired:
            words = f"did not end within {FORMAT_SECONDS_MAX:g} s"
            raise KafkaBrokerError(f"Kafka's storage tool {words}") from None
        if result.returncode != 0:
            said = (result.stderr or result.stdout).strip().splitlines()
            words = said[-1] if said else "it gave no reason"
            raise KafkaBrokerError(f"Kafka's storage tool failed: {words}")

    def _defaults(self, data: Path) -> dict[str, str]:
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{_HOST}:{self.controller_port}",
            "listeners": (
                f"PLAINTEXT://{_HOST}:{self.port},CONTROLLER://{_HOST}:{self.controller_port}"
            ),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(data),
            # There is one node, and nobody to copy to.
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Whoever wants a topic says so: a mistyped name shall not become one.
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # The largest batch that a validated topic has, and what Kafka writes around it.
            "message.max.bytes": str(SEALED_BYTES_MAX + 64 * 1024),
            # Two cores are shared with everybody else, and the heap is small.
            "num.network.threads": "2",
            "num.io.threads": "2",
            "num.recovery.threads.per.data.dir": "1",
            "background.threads": "2",
            "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
            "controlled.shutdown.enable": "false",
        }

    def _java(self, class_path: str, *arguments: str) -> list[str]:
        return [
            _program("java", "Java 17 or later"),
            "-Xms64m", f"-Xmx{self.heap_mb}m", "-XX:+UseSerialGC", "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *self.java_options,
            "-cp", class_path, *arguments,
        ]  # fmt: skip


@contextmanager
def running(brokers: Sequence[KafkaBroker]) -> Iterator[None]:
    """These brokers are up, as long as they are needed."""
    with ExitStack() as stack:
        for broker in brokers:
            stack.callback(broker.stop)
            broker.start()
        for broker in brokers:
            broker.wait_until_up()
        yield


def kafka_class_path(say: Say | None = None) -> str:
    """The jars of Kafka and of all that it needs, joined as Java wants them.

    Raises `KafkaUnavailableError` where there can be none.
    """
    _program("java", "Java 17 or later")
    parent = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(parent, "quorate", f"kafka-{VERSION}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock").open("w") as lock:
            # Tests of several workers may ask at the same time; the first one has it fetched.
            fcntl.flock(lock, fcntl.LOCK_EX)
            return _cached(cache) or _resolve(cache, say or (lambda words: None))
    except OSError as error:
        raise KafkaUnavailableError(
            f"the jars of Kafka cannot be listed in {cache}: {error.strerror}"
        ) from error


def _cached(cache: Path) -> str | None:
    """What Maven said last time, if all of it is still there."""
    try:
        jars = json.loads((cache / "jars.json").read_text())
    except (OSError, ValueError):
        return None
    return os.pathsep.join(jars) if jars and all(Path(jar).is_file() for jar in jars) else None


def _resolve(cache: Path, say: Say) -> str:
    (cache / "pom.xml").write_text(_POM)
    command = [
        _program("mvn", "Maven"), "--batch-mode", "--file", str(cache / "pom.xml"),
        "dependency:build-classpath", f"-Dmdep.outputFile={cache / 'class-path.txt'}",
        "-Dmdep.includeScope=runtime",
    ]  # fmt: skip
    say(f"Fetching Apache Kafka {VERSION} with Maven (once) ...")
    output = cache / "maven.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        process.wait(RESOLVE_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        words = f"Maven did not resolve Kafka within {RESOLVE_SECONDS_MAX:g} s"
        raise KafkaUnavailableError(words) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        lines = output.read_text(errors="replace").splitlines()
        errors = [line.removeprefix("[ERROR]").strip() for line in lines if "[ERROR]" in line]
        complaint = errors[0] if errors else f"it gave no reason (its log: {output})"
        raise KafkaUnavailableError(f"Maven could not resolve Kafka: {complaint}")
    jars = (cache / "class-path.txt").read_text().strip().split(os.pathsep)
    (cache / "jars.json").write_text(json.dumps(jars))
    return os.pathsep.join(jars)


def _program(name: str, words: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise KafkaUnavailableError(f"Kafka needs {words}, and there is no {name} on the PATH")
    return found


def watched(pid: int) -> subprocess.Popen[bytes]:
    """Somebody who ends that process when we are gone: our end of the pipe closes with us."""
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -9 "$1"', "sh", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
