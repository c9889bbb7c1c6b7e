"""The audit of a whole history, of an archive or of every replica of a cluster, on many machines.

Source: DESIGN section 6 (audit); Kabis 2023, sections 3.3 and 3.4 (K8).

An archive is audited with the cluster file alone (`pipeline/audit_archive.py`). Otherwise all
replicas of the cluster are asked, each for its own copy (`pipeline/audit_stores.py`). Either way
tasks do the work on parts of the history that they hold one at a time, and what grows with the
history goes from task to task through Spark, and never to the driver.

Findings are those of `quorate audit`, by the same names and against the same parties, and so are
the exit codes: 1 if there are any, 3 if the audit could not be finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta

from quorate.core.errors import ConfigError, QuorumError
from quorate.pipeline.archiving import whole_path
from quorate.pipeline.audit_archive import audit_archive
from quorate.pipeline.audit_stores import Extent, audit_stores
from quorate.pipeline.jobs.job import BatchJob, Config, Ended, Pipes
from quorate.pipeline.reports import EXIT_UNFINISHED, AuditReport
from quorate.runtime.files import cluster_file, read_cluster

NAME: Final = "audit"
_Topic = Annotated[str, Meta(min_length=1, max_length=256)]


class AuditConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is audited, and where the report goes."""

    # The directory of an archive; without one, the replicas of the cluster are audited.
    archive: str = ""
    # Of an archive: the cluster files with the keys, that of today first. If there are none, that
    # of the cluster's directory.
    keys: tuple[str, ...] = ()
    # All log topics, or those that are named.
    topics: tuple[_Topic, ...] = ()
    # Where a row for each party is written, with what was found; nowhere if nothing is named.
    report: str = ""
    format: Literal["parquet", "json"] = "parquet"
    # Of replicas: so many slots are walked by a task at a time, and the batches of so many events
    # read.
    slots_per_range: Annotated[int, Meta(ge=1)] = 16_384
    events_per_stretch: Annotated[int, Meta(ge=1)] = 65_536


def audit(pipes: Pipes, config: AuditConfig) -> AuditReport:
    """The audit that these settings ask for."""
    if config.archive:
        files = config.keys or (pipes.cluster,)
        clusters = [read_cluster(cluster_file(Path(file))) for file in files]
        return audit_archive(pipes.spark, config.archive, clusters, config.topics)
    if config.keys:
        raise ConfigError(
            "setting keys of the job audit goes with the setting archive; of a cluster, the keys "
            "are in its directory"
        )
    extent = Extent(
        whole_path(pipes.cluster),
        pipes.identity,
        config.topics,
        config.slots_per_range,
        config.events_per_stretch,
    )
    return audit_stores(pipes.spark, extent)


def _run(pipes: Pipes, config: AuditConfig) -> Ended:
    try:
        report = audit(pipes, config)
    except QuorumError as error:
        return Ended((str(error),), EXIT_UNFINISHED)
    if config.report:
        # One file: a row for each party is not much.
        writer = report.frame(pipes.spark).coalesce(1).write.mode("overwrite")
        writer.format(config.format).save(whole_path(config.report))
    return Ended(tuple(report.lines()), report.code)


JOB: Final = BatchJob(
    name=NAME,
    summary="Audit the whole history, of an archive or of every replica; ends with a report.",
    config=AuditConfig,
    run=_run,
    is_offline=lambda config: bool(config.archive and config.keys),
)
