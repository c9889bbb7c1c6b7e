"""A log topic's run told in lines: what broke, who led when, and the way of one batch."""

from collections.abc import Iterator
from functools import partial

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.core.ordering import Announce, AnnounceSealed, Append, Propose, Stop, StopData, Sync
from quorate.protocol.machine import Entry, Outcome, Recorded
from quorate.protocol.ordering.value import Value, value_digest
from quorate.sim.order_checkers import LogBatch, LogViolation
from quorate.sim.order_scenarios import OrderScenario
from quorate.sim.order_stage import OrderStage
from quorate.sim.trace import performed


def trace_log(scenario: OrderScenario, violation: LogViolation) -> list[str]:
    """Who took part, what broke, and what was said about the batch of this violation."""
    batch = violation.batch
    lines = performed(
        partial(OrderStage, scenario),
        lambda sender, message: _told(sender, message, batch),
        lambda node, outcome: _outcome(node, outcome, batch),
    )
    return [*_cast(scenario), *lines]


def _told(sender: NodeId, message: Message, batch: LogBatch | None) -> str:
    """A message in words, if it is about the batch or about who leads."""
    if isinstance(message, Stop | StopData | Sync):
        return f"{type(message).__name__.upper()}, for regency {message.regency}"
    if batch is not None and isinstance(message, Append | Announce | AnnounceSealed):
        return _told_request(sender, message, batch)
    if batch is not None and isinstance(message, Propose):
        return _told_proposal(message, batch)
    return ""


def _told_request(
    sender: NodeId, message: Append | Announce | AnnounceSealed, batch: LogBatch
) -> str:
    if isinstance(message, Append):
        run = message.payloads
    else:
        run = message.seals if isinstance(message, AnnounceSealed) else message.descriptors
    last, target = message.first + len(run) - 1, (message.topic, message.partition)
    if (sender, target) != (batch.publisher, tuple(batch.partition)):
        return ""
    is_in = message.first <= batch.sequence <= last
    return f"{type(message).__name__} {message.first} to {last}" if is_in else ""


def _told_proposal(propose: Propose, batch: LogBatch) -> str:
    for span in Value.decode(propose.value).spans:
        is_line = (span.publisher, span.line.target) == (batch.publisher, batch.partition)
        if is_line and span.first <= batch.sequence < span.end:
            name = value_digest(propose.value).hex()[:8]
            return f"PROPOSE {name} in slot {propose.slot}, regency {propose.regency}"
    return ""


def _outcome(node: NodeId, outcome: Outcome, batch: LogBatch | None) -> Iterator[str]:
    if batch is None:
        return
    if isinstance(outcome, Recorded):
        at = batch.sequence - outcome.first
        is_line = (node, outcome.line.target) == (batch.publisher, batch.partition)
        if is_line and 0 <= at < outcome.count:
            words = ", ".join(map(str, outcome.replicas))
            yield f"has POSITION {outcome.offsets[at]} from {words}"
    elif isinstance(outcome, Entry):
        found = LogBatch(outcome.publisher, outcome.partition, outcome.sequence)
        if found == batch:
            yield f"READS it at {outcome.offset} from {', '.join(map(str, outcome.vouchers))}"


def _cast(scenario: OrderScenario) -> Iterator[str]:
    contract = scenario.topic.contract
    mode, latency = scenario.network.mode.value, scenario.network.latency
    yield f"{contract.protection}, {contract.partitions} partitions; {mode} links, {latency}"
    for replica in scenario.topic.members:
        yield f"replica {replica}: {scenario.hostile.get(replica, 'correct')}"
    for part in scenario.publishers:
        yield f"publisher {part.node}: {part.conduct.value} {part.adversary or ''}".rstrip()
    yield f"readers: {', '.join(map(str, scenario.readers))}"
