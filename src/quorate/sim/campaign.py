"""Many seeds of one setting, and what they add up to."""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from quorate.sim.checkers import Violation
from quorate.sim.order_checkers import LogViolation
from quorate.sim.order_scenarios import draw_order
from quorate.sim.order_stage import OrderStage
from quorate.sim.order_trace import trace_log
from quorate.sim.scenarios import LOG_PROTOCOLS, Setting, draw
from quorate.sim.stage import Stage
from quorate.sim.trace import trace

# Processes take seeds in small helpings, so that all of them end at about the same time.
_HELPING = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one seed came to."""

    seed: int
    simulated_us: int
    messages: int
    published: int
    delivered: int
    faults: Counter[str]
    violations: tuple[Violation | LogViolation, ...]


@dataclass(slots=True)
class Summary:
    """Verdicts added up."""

    setting: Setting
    seeds: int = 0
    simulated_us: int = 0
    messages: int = 0
    published: int = 0
    delivered: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    guilty: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.simulated_us += verdict.simulated_us
        self.messages += verdict.messages
        self.published += verdict.published
        self.delivered += verdict.delivered
        self.faults += verdict.faults
        if verdict.violations:
            self.guilty.append(verdict)

    @property
    def violations(self) -> int:
        return sum(len(verdict.violations) for verdict in self.guilty)


def run_seed(setting: Setting, seed: int) -> Verdict:
    """Draw the scenario of this seed, perform it and judge it."""
    stage = stage_of(setting, seed)
    violations = stage.perform()
    return Verdict(
        seed=seed,
        simulated_us=stage.world.now_us,
        messages=stage.world.deliveries,
        published=stage.published,
        delivered=stage.delivered,
        faults=stage.faults,
        violations=tuple(violations),
    )


def stage_of(setting: Setting, seed: int) -> Stage | OrderStage:
    """The world of this seed, before anything has happened in it."""
    if setting.protocol in LOG_PROTOCOLS:
        return OrderStage(draw_order(setting, seed))
    return Stage(draw(setting, seed))


def run_seeds(setting: Setting, seeds: Iterable[int], *, jobs: int = 1) -> Iterator[Verdict]:
    """The verdicts in the order of the seeds, from so many processes."""
    judge = partial(run_seed, setting)
    if jobs <= 1:
        yield from map(judge, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(judge, seeds, chunksize=_HELPING)
        finally:
            # Whoever stops listening does not want the rest.
            pool.shutdown(cancel_futures=True)


def command(setting: Setting, seed: int) -> str:
    """What to type to see this seed again."""
    pinned = f" --adversary {setting.adversary}" if setting.adversary else ""
    return (
        f"./quorate simulate --protocol {setting.protocol} --f {setting.f}"
        f" --seeds 1 --first-seed {seed}{pinned}"
    )


def explain(setting: Setting, verdict: Verdict) -> list[str]:
    """The run of a guilty seed, as far as its first violation is concerned."""
    first = verdict.violations[0]
    if isinstance(first, LogViolation):
        return trace_log(draw_order(setting, verdict.seed), first)
    return trace(draw(setting, verdict.seed), first.batch)
