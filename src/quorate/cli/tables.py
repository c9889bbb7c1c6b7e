"""How replicas are doing, as tables and as lines.

What is shown of a replica is its own word, and it may lie or talk nonsense. A report is
therefore read into a fixed shape first, and nothing in it can disturb the terminal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec
from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from quorate.cli.text import printable
from quorate.core.cluster import Cluster, Replica
from quorate.core.errors import RemoteProtocolError
from quorate.crypto.evidence import Keys, parse, verify_evidence
from quorate.runtime.launcher import Launcher

# In a terminal with fewer columns than this, the columns of a table stand closer.
WIDE_COLUMNS = 100
ROOT_CHARACTERS, ROOT_CHARACTERS_WIDE = 8, 16
WIDTH_UNBOUNDED = 1000
OFFENDERS_SHOWN = 20
WORDS_CHARACTERS_MAX = 300
CLOCK_WRONG_S = 10.0

_HEALTH_STYLES = {
    "ok": "green",
    "misbehaving": "magenta",
    "down": "red",
    "disk full": "red",
    "store in trouble": "yellow",
    "log stopped": "red",
}


class GroupReport(msgspec.Struct, frozen=True):
    """How far a replica is with one order log."""

    leader: str
    regency: int
    slot: int
    batches: int
    root: str
    missing: int = 0
    checkpoint: str = ""
    clocks_ahead_s: dict[str, float] = {}
    evidence: list[str] = []
    # Why this group is silent; empty if it is not.
    stopped: str = ""


class LogReport(msgspec.Struct, frozen=True):
    """What a replica says of its order logs."""

    fsync: str
    gives_up: str
    groups: dict[str, GroupReport] = {}


class Report(msgspec.Struct, frozen=True):
    """What a replica says of itself, as far as it is shown."""

    health: str
    why: str = ""
    misbehaviour: str = "none"
    regency: int | None = None
    memory_mb: float = 0.0
    links: int = 0
    rates: dict[str, float] = {}
    topics: dict[str, dict[str, int]] = {}
    rejected: int = 0
    offenders: list[str] = []
    log: LogReport | None = None
    disk: str = ""
    store: str = ""


class Standing(msgspec.Struct, frozen=True):
    """One replica of the cluster file, and its report."""

    replica: Replica
    report: Report

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def is_up(self) -> bool:
        return self.report.health != "down"

    @property
    def stopped(self) -> list[tuple[str, str]]:
        """The logs that this replica has stopped, and why."""
        groups = self.report.log.groups if self.report.log else {}
        return [(name, group.stopped) for name, group in groups.items() if group.stopped]

    @property
    def health(self) -> str:
        """One word on a replica that is well, a few on any other."""
        report = self.report
        words = {
            "misbehaving": report.misbehaviour,
            "down": report.why,
            "disk full": report.disk,
            "store in trouble": report.store,
            "log stopped": ", ".join(name for name, _ in self.stopped),
        }
        return words.get(report.health, "ok")


Reports: TypeAlias = Mapping[str, Mapping[str, object]]


def standings(launcher: Launcher, reports: Reports) -> list[Standing]:
    """What `Admin.status` found, for every replica in the order of the cluster file."""
    return [
        Standing(replica, _read(launcher, replica.name, reports.get(replica.name, {})))
        for replica in launcher.cluster.replicas
    ]


def replica_table(cluster: Cluster, found: Sequence[Standing], *, width: int) -> Table:
    """One row per replica."""
    table = _fitting(
        width,
        [(column.title, column.is_number) for column in _COLUMNS],
        [[column.cell(standing) for column in _COLUMNS] for standing in found],
        given_up=("address", "party", "links", "memory\nMB", "re-\ngency"),
    )
    table.title = (
        f"Cluster {cluster.name}: {len(found)} replicas, of which {cluster.f} may fail or lie"
    )
    return table


def topic_table(cluster: Cluster, found: Sequence[Standing], *, width: int) -> Table:
    """One row per topic: a single number where its replicas agree, else each one's own."""
    words = [(title, False) for title in ("topic", "protocol", "served by")]
    numbers = [(title, True) for title in _TOPIC_COUNTS.values()]
    rows: list[list[str | Text]] = []
    for topic, contract in cluster.topics.items():
        served_by = [cluster.member(number).name for number in cluster.placement(topic)]
        counts = (_per_replica(found, topic, key) for key in _TOPIC_COUNTS)
        rows.append([topic, contract.protocol, " ".join(served_by), *counts])
    return _fitting(width, [*words, *numbers], rows, given_up=("served by", "protocol"))


def log_tables(found: Sequence[Standing], *, width: int) -> Iterator[Table]:
    """A table for each order log, with one row per replica."""
    logs: dict[str, dict[str, GroupReport]] = {}
    for standing in found:
        for name, group in (standing.report.log.groups if standing.report.log else {}).items():
            logs.setdefault(name, {})[standing.name] = group
    for name, groups in logs.items():
        leaders = [_brief(group.leader) for group in groups.values()]
        rows = [_log_row(replica, group, width) for replica, group in groups.items()]
        title, columns = f"Log {_brief(name)}", list(_LOG_COLUMNS)
        if len(set(leaders)) == 1:
            title += f", led by {leaders[0]}"
        else:
            # Leaders change, and then a replica may not know it yet.
            columns.append(("leader", False))
            for row, leader in zip(rows, leaders, strict=True):
                row.append(Text(leader))
        table = _fitting(width, columns, rows)
        table.title = Text(title)
        yield table


def _log_row(replica: str, group: GroupReport, width: int) -> list[str | Text]:
    lines = group.checkpoint.splitlines()
    signed = lines[1] if len(lines) > 1 and lines[1].isdecimal() else "0"
    shown = ROOT_CHARACTERS_WIDE if width >= WIDE_COLUMNS else ROOT_CHARACTERS
    root = f"{group.root[:shown]}…" if len(group.root) > shown else group.root
    return [
        replica, str(group.regency), f"{group.slot:,}", f"{group.batches:,}",
        f"{int(signed):,}", f"{group.missing:,}", Text(printable(root)),
    ]  # fmt: skip


_LOG_COLUMNS = (
    ("replica", False),
    ("re-\ngency", True),
    ("slot", True),
    ("batches", True),
    ("signed", True),
    ("missing", True),
    ("root", False),
)


def remarks(cluster: Cluster, found: Sequence[Standing]) -> Group:
    """Whatever deserves a sentence: who is down and why, who misbehaves, who is accused."""
    lines = []
    faulty = sum(standing.health != "ok" for standing in found)
    if faulty > cluster.f:
        lines.append(
            Text(f"{faulty} replicas are not well, and this cluster tolerates {cluster.f}", "red")
        )
    for standing in found:
        if standing.health != "ok":
            verb = _VERBS[standing.report.health]
            lines.append(Text(f"{standing.name} {verb}: {standing.health}", _style(standing)))
        for log, reason in standing.stopped:
            words = f"{standing.name} stopped its {_brief(log)} log: {_brief(reason)}"
            lines.append(Text(words, "red"))
    lines += [Text(f"proved: {_brief(words)}", "red") for words in _proved(cluster, found)]
    gives_up = {s.report.log.gives_up for s in found if s.report.log and s.report.log.gives_up}
    for words in sorted(gives_up):
        lines.append(Text(f'fsync = "{cluster.fsync}": {_brief(words)}', "yellow"))
    lines += [Text(words, "yellow") for words in _wrong_clocks(found)]
    for standing in found:
        if standing.report.offenders:
            accused = ", ".join(standing.report.offenders)
            lines.append(Text(f"{standing.name} rejected: {accused}", "yellow"))
    return Group(*lines)


def _proved(cluster: Cluster, found: Iterable[Standing]) -> Iterator[str]:
    """What replicas have evidence of; it is looked at here, whoever sent it."""
    keys, sentences = Keys.of(cluster), dict[str, None]()
    for standing in found:
        groups = standing.report.log.groups.values() if standing.report.log else ()
        for text in [text for group in groups for text in group.evidence]:
            with suppress(RemoteProtocolError):
                sentences[verify_evidence(parse(text), keys).sentence] = None
    return iter(sentences)


def _wrong_clocks(found: Iterable[Standing]) -> Iterator[str]:
    """Whose clock is far from the others', in whose opinion."""
    for standing in found:
        groups = standing.report.log.groups.values() if standing.report.log else ()
        ahead_s = {name: s for group in groups for name, s in group.clocks_ahead_s.items()}
        for name, seconds in ahead_s.items():
            if abs(seconds) >= CLOCK_WRONG_S:
                where = "ahead" if seconds > 0 else "behind"
                yield (
                    f"{standing.name} finds the clock of {_brief(name)} "
                    f"{abs(seconds):,.0f} s {where}"
                )


_VERBS = {
    "down": "is down",
    "misbehaving": "misbehaves on purpose",
    "disk full": "acknowledges nothing, since its disk is full",
    "log stopped": "is silent in a group that cannot go on",
    "store in trouble": "stores no large batches, since its Kafka does not answer",
}


def line(standing: Standing) -> str:
    """One replica in one line, for logs and pipes."""
    replica = standing.replica
    return f"{replica.name}  {replica.host}:{replica.port}  {standing.report.health}" + (
        "" if standing.health == "ok" else f": {standing.health}"
    )


def on_stderr() -> Console:
    """For what is neither a result nor an error."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


class _Column(msgspec.Struct, frozen=True):
    title: str
    text: Callable[[Standing], str]
    is_number: bool = True

    def cell(self, standing: Standing) -> Text:
        if self.is_number and not standing.is_up:
            return Text("-", "dim")
        style = _style(standing) if self.title == "health" else ""
        return Text(self.text(standing), style)


_COLUMNS = (
    _Column("replica", lambda s: s.name, is_number=False),
    _Column("party", lambda s: s.replica.party, is_number=False),
    _Column("address", lambda s: f"{s.replica.host}:{s.replica.port}", is_number=False),
    _Column("health", lambda s: s.report.health, is_number=False),
    _Column("batches\nin/s", lambda s: _rate(s, "batches_in_per_s")),
    _Column("events\nout/s", lambda s: _rate(s, "events_out_per_s")),
    _Column("events\nqueued", lambda s: _sum(s, "queued_events")),
    _Column("sub-\nscribers", lambda s: _sum(s, "subscribers")),
    _Column("re-\ngency", lambda s: "-" if s.report.regency is None else str(s.report.regency)),
    _Column("memory\nMB", lambda s: f"{s.report.memory_mb:.0f}"),
    _Column("re-\njected", lambda s: f"{s.report.rejected:,}"),
    _Column("links", lambda s: str(s.report.links)),
)

_TOPIC_COUNTS = {
    "publishers": "pub-\nlishers",
    "subscribers": "sub-\nscribers",
    "queued_events": "events\nqueued",
    "pushing_back": "pushing\nback",
    "discarded": "dis-\ncarded",
    "expired": "ex-\npired",
}


def _fitting(
    width: int,
    columns: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[str | Text]],
    given_up: Sequence[str] = (),
) -> Table:
    """As many of these columns as fit with no word cut; these are given up first, in order."""
    unbounded = Console(width=WIDTH_UNBOUNDED)
    for count in range(len(given_up) + 1):
        kept = [at for at, (title, _) in enumerate(columns) if title not in given_up[:count]]
        table = _table(width >= WIDE_COLUMNS, *(columns[at] for at in kept))
        for row in rows:
            table.add_row(*(row[at] for at in kept))
        if Measurement.get(unbounded, unbounded.options, table).minimum <= width:
            break
    return table


def _table(is_wide: bool, *columns: tuple[str, bool]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1 if is_wide else 0, 0, 0),
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
    for title, is_number in columns:
        # What is one word stays one; only lists of names may take several lines.
        is_list = title == "served by" or title in _TOPIC_COUNTS.values()
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(title, justify=justify, overflow="fold", no_wrap=not is_list)
    return table


def _read(launcher: Launcher, name: str, said: Mapping[str, object]) -> Report:
    try:
        report = msgspec.convert(said, Report)
    except msgspec.ValidationError as error:
        return Report("down", why=f"its report makes no sense: {_brief(str(error))}")
    if report.health not in _HEALTH_STYLES:
        return Report("down", why="its report makes no sense")
    return msgspec.structs.replace(
        report,
        why=_process_state(launcher, name) or _brief(report.why),
        misbehaviour=_brief(report.misbehaviour),
        disk=_brief(report.disk),
        store=_brief(report.store),
        offenders=[_brief(words) for words in report.offenders[:OFFENDERS_SHOWN]],
    )


def _brief(words: str) -> str:
    return printable(words[:WORDS_CHARACTERS_MAX])


def _process_state(launcher: Launcher, name: str) -> str:
    """Why a replica of this machine cannot answer; empty if its process is not the reason."""
    if name not in launcher.held:
        return ""
    if launcher.pid(name) is None:
        return "its process does not run"
    return "its process is paused" if launcher.is_paused(name) else ""


def _style(standing: Standing) -> str:
    return _HEALTH_STYLES[standing.report.health]


def _rate(standing: Standing, name: str) -> str:
    return f"{standing.report.rates.get(name, 0.0):,.0f}"


def _sum(standing: Standing, key: str) -> str:
    return f"{sum(counts.get(key, 0) for counts in standing.report.topics.values()):,}"


def _per_replica(found: Iterable[Standing], topic: str, key: str) -> str:
    counts = {
        standing.name: standing.report.topics[topic].get(key, 0)
        for standing in found
        if topic in standing.report.topics
    }
    if len(set(counts.values())) <= 1:
        return next((f"{count:,}" for count in counts.values()), "-")
    return " ".join(f"{name}:{count:,}" for name, count in counts.items())
