"""`quorate audit`: the whole history of a cluster, checked at every replica."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from quorate.cli.directory import (
    DEFAULT,
    Directory,
    SameDirectoryOption,
    hint_if_unreached,
    observer,
    opened,
    patience_s,
)
from quorate.cli.tables import on_stderr
from quorate.cli.text import printable
from quorate.client.audit import Auditor, GroupReport, PartitionReport, Report
from quorate.client.audit import Progress as AuditProgress
from quorate.core.errors import ConfigError, QuorumError
from quorate.crypto.evidence import render
from quorate.pipeline.reports import EXIT_MISBEHAVIOUR, EXIT_UNFINISHED
from quorate.protocol.auditing.findings import Finding, Pile
from quorate.runtime.launcher import Launcher
from quorate.runtime.loop import run

# A bar that comes and goes at once only flickers.
BAR_AFTER_S = 2.0
BAR_EVERY_S = 0.1

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command()
def audit(
    named: Directory = None,
    directory: SameDirectoryOption = DEFAULT,
    name: Annotated[
        str | None,
        typer.Option("--as", help="Which client to be; if left out, an operator if one is here."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="Audit this log topic only; repeat it for more."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    evidence_dir: Annotated[
        Path | None,
        typer.Option(help="Write each piece of evidence into a file of its own in this directory."),
    ] = None,
) -> None:
    """Check the whole history of a cluster, at every replica.

    The slots of all replicas are walked, and everything that follows from them is computed again:
    sequences without gaps, positions, the Merkle tree and its roots, which are held against the
    checkpoints that a quorum signed. Then every payload is read from every replica that has it, and
    must be what was agreed and what its header says; where it is signed, its signature must hold.

    Exits with 0 if all is well, 1 if somebody misbehaved or something is missing, 2 for a wrong
    option, and 3 if the audit could not be finished, since too few replicas answered.
    """
    launcher = opened(named or directory)
    if evidence_dir is not None and evidence_dir.exists() and not evidence_dir.is_dir():
        raise ConfigError(f"--evidence-dir {evidence_dir} is a file, not a directory")
    who = name or observer(launcher)
    try:
        with hint_if_unreached(launcher):
            report = run(_audit(launcher, who, topic or []))
    except QuorumError as error:
        on_stderr().print(Text(str(error), style="red"), soft_wrap=True)
        raise typer.Exit(EXIT_UNFINISHED) from None
    written = {} if evidence_dir is None else _write_evidence(report, evidence_dir)
    if as_json:
        typer.echo(json.dumps(as_object(report, written), indent=2))
    else:
        _print(report, written)
    if report.findings:
        raise typer.Exit(EXIT_MISBEHAVIOUR)
    if not report.is_finished:
        raise typer.Exit(EXIT_UNFINISHED)


async def _audit(launcher: Launcher, who: str, topics: list[str]) -> Report:
    with _Bar() as bar:
        async with Auditor(launcher.directory, who, topics=topics, on_progress=bar.show) as auditor:
            await auditor.reach(patience_s(launcher))
            return await auditor.audit()


class _Bar:
    """How far the audit is, on a terminal, if it takes its time."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._began_s = self._shown_s = time.monotonic()
        self._read_since_s: float | None = None
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, audited: AuditProgress) -> None:
        now_s = time.monotonic()
        if audited.checked_bytes and self._read_since_s is None:
            self._read_since_s = now_s
        is_early = now_s - self._began_s < BAR_AFTER_S or now_s - self._shown_s < BAR_EVERY_S
        if is_early or not self._console.is_terminal:
            return
        self._shown_s = now_s
        if self._progress is None or self._task is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
            )
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._task = self._progress.add_task("", total=1, rate="")
            self._progress.start()
        is_reading = audited.offsets_total > 0
        done = audited.offsets if is_reading else audited.slots
        total = audited.offsets_total if is_reading else audited.slots_total
        rate = ""
        if self._read_since_s is not None and now_s > self._read_since_s:
            rate = f"{audited.checked_bytes / 1e6 / (now_s - self._read_since_s):,.0f} MB/s"
        self._progress.update(
            self._task, description=audited.doing, completed=done, total=max(1, total), rate=rate
        )


# Evidence


def _write_evidence(report: Report, directory: Path) -> dict[Finding, str]:
    """Each piece in a file, which is called after whom it is against."""
    provable = [f for pile in report.findings for f in pile.examples if f.evidence is not None]
    if not provable:
        return {}
    directory.mkdir(parents=True, exist_ok=True)
    written: dict[Finding, str] = {}
    for number, finding in enumerate(provable, 1):
        assert finding.evidence is not None
        path = directory / f"{number:03}-{finding.kind}-{finding.who}.json"
        path.write_text(render(finding.evidence), encoding="utf-8")
        written[finding] = str(path)
    return written


# JSON


def as_object(report: Report, written: dict[Finding, str]) -> dict[str, Any]:
    """The report for programs."""
    return {
        "cluster": report.cluster,
        "clean": not report.findings,
        "finished": report.is_finished,
        "named": report.findings.named,
        "silent": dict(report.silent),
        "findings": [
            {"count": pile.count, "examples": [_finding(each, written) for each in pile.examples]}
            for pile in report.findings
        ],
        "groups": [_group(group) for group in report.groups],
        "partitions": [_partition(partition) for partition in report.partitions],
        "notes": list(report.notes),
        "history_bytes": report.payload_bytes,
        "checked_bytes": report.checked_bytes,
        "seconds": round(report.seconds, 3),
        "processor_s": round(report.processor_s, 3),
    }


def _finding(finding: Finding, written: dict[Finding, str]) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "who": finding.who or None,
        "sentence": finding.sentence,
        **finding.where.fields(),
        "provable": finding.is_provable,
        "evidence": None if finding.evidence is None else json.loads(render(finding.evidence)),
        "evidence_file": written.get(finding),
    }


def _group(group: GroupReport) -> dict[str, Any]:
    return {
        "name": group.name,
        "finished": group.is_finished,
        "replicas": list(group.replicas),
        "walked": list(group.walked),
        "agreeing": list(group.agreeing),
        "first_slot": group.first_slot,
        "last_slot": group.last_slot,
        "batches": group.batches,
        "signed_batches": group.signed,
        "checkpoints": group.checkpoints,
    }


def _partition(partition: PartitionReport) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "validated": partition.validated,
        "read": partition.is_read,
        "first_offset": partition.first,
        "end_offset": partition.end,
        "audited_from": partition.audited_from,
        "batches": partition.batches,
        "events": partition.events,
        "signed_events": partition.signed_events,
        "bytes": partition.payload_bytes,
        "producers": list(partition.producers),
        "replicas": {
            name: {"batches": batches, "lacking": partition.lacking[name]}
            for name, batches in partition.brought.items()
        },
        "undecided": [[missing.start, missing.end] for missing in partition.undecided],
    }


# Words


def _print(report: Report, written: dict[Finding, str]) -> None:
    console = Console()
    console.print(_partition_table(report))
    for group in report.groups:
        console.print(_group_sentence(group), soft_wrap=True)
    for who, why in report.silent.items():
        console.print(Text(f"{who} did not answer: {printable(why)}.", "yellow"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"Note: {printable(note)}.", "dim"), soft_wrap=True)
    for pile in report.findings:
        for line in _accusation(pile, written):
            console.print(line, soft_wrap=True)
    console.print(_verdict(report), soft_wrap=True)


def _partition_table(report: Report) -> Table:
    """One row per partition; order and digests are checked of all of them."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("topic", overflow="fold")
    for heading in ("part", "from", "to", "batches", "events", "signed", "MB", "copies"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("producers", overflow="fold")
    for row in report.partitions:
        begun = row.first if row.audited_from is None else row.audited_from
        table.add_row(
            printable(row.topic),
            str(row.partition),
            str(begun),
            str(row.end - 1),
            f"{row.batches:,}" if row.is_read else "unread",
            f"{row.events:,}" if row.is_read else f"({row.end - row.first:,})",
            f"{row.signed_events:,}" if row.validated and row.is_read else "",
            f"{row.payload_bytes / 1e6:,.1f}" if row.is_read else "",
            f"{sum(row.brought.values()):,}" if row.is_read else "",
            printable(", ".join(row.producers)),
        )
    return table


def _group_sentence(group: GroupReport) -> Text:
    style = "green" if group.is_finished else "yellow"
    checkpoints = "1 checkpoint" if group.checkpoints == 1 else f"{group.checkpoints} checkpoints"
    return Text(
        f"Order of the {group.name} group: slots {group.first_slot} to {group.last_slot}, "
        f"{group.batches:,} batches, {group.signed:,} of them under {checkpoints} that a quorum "
        f"signed. {len(group.agreeing)} of {len(group.replicas)} replicas tell it: "
        f"{', '.join(group.agreeing) or 'none'}.",
        style,
    )


def _accusation(pile: Pile, written: dict[Finding, str]) -> list[Text]:
    first = pile.examples[0]
    who = printable(first.who) or "somebody"
    times = "" if pile.count == 1 else f" ({pile.count:,} times)"
    proof = "with evidence" if first.is_provable else "on the auditor's word"
    head = Text(f"{who}: {first.kind}{times}, {proof}", "red")
    lines = [Text(f"  {printable(finding.sentence)}") for finding in pile.examples]
    files = [written[finding] for finding in pile.examples if finding in written]
    return [head, *lines, *(Text(f"  evidence in {file}") for file in files)]


def _verdict(report: Report) -> Text:
    rate = report.checked_bytes / 1e6 / report.seconds if report.seconds else 0
    done = (
        f"{report.payload_bytes / 1e6:,.1f} MB of history, {report.checked_bytes / 1e6:,.1f} MB "
        f"with all copies, in {report.seconds:.1f} s ({rate:,.0f} MB/s, "
        f"{report.processor_s:.1f} s of processor time)"
    )
    if report.findings:
        named = ", ".join(map(printable, report.findings.named)) or "nobody can be named"
        return Text(f"Something is wrong: {named}. Checked {done}.", "red")
    if not report.is_finished:
        return Text(f"The audit could not be finished. Checked {done}.", "yellow")
    return Text(f"All is well. Checked {done}.", "green")
