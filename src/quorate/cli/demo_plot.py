"""The plot of the demo: who takes part, what each of them does, and what is true of it.

Four sites publish the packets of handshakes that they see, each on a topic of its own; among all
that is innocent, scanners probe so little at each of them that none would notice. Hosts of three
parties send heartbeats, and some of them fall silent. An analyst, whom nobody has to trust, reads
all of it with Spark, and publishes a blacklist and alerts.
"""

import random
import time
from dataclasses import dataclass, field, replace
from functools import cached_property

from quorate.core.contract import Contract
from quorate.pipeline.data.hosts import HEARTBEATS, SYSLOG, Estate, Recording
from quorate.pipeline.data.sites import HARD, Setting, Traffic
from quorate.pipeline.jobs.archive import ArchiveConfig
from quorate.pipeline.jobs.monitor import MonitorConfig
from quorate.pipeline.jobs.portscan import PortscanConfig

BLACKLIST, ALERTS = "blacklist", "alerts"
ANALYST, WATCH = "analyst", "watch"
SEEDS = 2**32
# Scanners are done within less than half a minute each, so that there is one to see now and then.
PACE = 0.4
# With little time, a handshake that nobody answers is not waited for as long.
SHORT_S, SHORT_TIMEOUT_S = 20.0, 2.0
# The leader's death may hold up what one site publishes more than what another does.
OVERTAKING_S = 2.0
SILENT_PERIODS = 5
OUTAGE_PERIODS = (8.0, 16.0)

_VALIDATED: dict[str, object] = {"order": "total", "validated": True, "event_proofs": True}


@dataclass(frozen=True)
class Plan:
    """A story of so many seconds; another seed is another story."""

    seconds: float
    seed: int = field(default_factory=lambda: random.SystemRandom().randrange(SEEDS))
    analyst: str = ANALYST
    watch: str = WATCH

    @cached_property
    def setting(self) -> Setting:
        timeout_s = HARD.timeout_s if self.seconds > SHORT_S else SHORT_TIMEOUT_S
        return replace(HARD, pace=PACE, timeout_s=timeout_s)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.setting.sites

    @cached_property
    def _estate(self) -> Estate:
        return Estate(
            seed=self.seed,
            duration_s=self.seconds,
            period_s=self.seconds / (2 * OUTAGE_PERIODS[1]),
            outage_periods=OUTAGE_PERIODS,
            lines_per_s=1.0,
        )

    @property
    def parties(self) -> tuple[str, ...]:
        return self._estate.parties

    @property
    def archived(self) -> tuple[str, ...]:
        return (*self.sites, HEARTBEATS)

    def contracts(self) -> dict[str, Contract]:
        """Everybody may read; on each topic only those publish whose business it is."""
        tables: dict[str, dict[str, object]] = {
            site: {**_VALIDATED, "publish": [site]} for site in self.sites
        }
        tables[HEARTBEATS] = {**_VALIDATED, "publish": [*self.parties, self.analyst]}
        # What nobody decides by may be cheap.
        tables[SYSLOG] = {"protection": "crash", "publish": list(self.parties)}
        for topic in (BLACKLIST, ALERTS):
            tables[topic] = {**_VALIDATED, "publish": [self.analyst]}
        return {name: Contract.parse(name, table) for name, table in tables.items()}

    def clients(self) -> tuple[str, ...]:
        return (*self.sites, *self.parties, self.analyst, self.watch)

    def traffic(self, start_us: int) -> Traffic:
        return Traffic(self.setting, seed=self.seed, start_us=start_us, duration_s=self.seconds)

    def hosts(self, start_us: int) -> Recording:
        return replace(self._estate, start_us=start_us).record()

    def portscan(self) -> PortscanConfig:
        return PortscanConfig(
            topics=self.sites,
            blacklist=BLACKLIST,
            threshold=self.setting.threshold,
            timeout_s=self.setting.timeout_s,
            forget_s=self.setting.forget_s,
            watermark_delay_s=OVERTAKING_S,
        )

    def monitor(self) -> MonitorConfig:
        return MonitorConfig(
            heartbeats=HEARTBEATS,
            alerts=ALERTS,
            period_s=self._estate.period_s,
            limit_periods=SILENT_PERIODS,
            delay_s=OVERTAKING_S,
            programs=("silences",),
        )

    def archive(self, directory: str) -> ArchiveConfig:
        return ArchiveConfig(topics=self.archived, directory=directory)

    @property
    def silent_after_s(self) -> float:
        return SILENT_PERIODS * self._estate.period_s


def now_us() -> int:
    return time.time_ns() // 1000
