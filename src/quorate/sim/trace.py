"""A run told in lines: what broke, and the way of one batch through it.

A seed is one run, so a trace is made by performing the scenario again with somebody listening.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

from quorate.core.ids import Lane, NodeId
from quorate.core.messages import Fetch, Link, Message, Publish, Supply
from quorate.crypto.digests import digest
from quorate.protocol.machine import Delivery, Outcome, Receipt, Skipped
from quorate.sim.checkers import BatchId, Conduct
from quorate.sim.scenarios import Scenario
from quorate.sim.stage import Stage
from quorate.sim.theatre import Theatre

LINES_MAX = 60


def trace(scenario: Scenario, batch: BatchId) -> list[str]:
    """Who took part, what broke, and every message and outcome about this batch."""

    def told(sender: NodeId, message: Message) -> str:
        return _told(message, batch) if is_about(sender, message, batch) else ""

    def came_out(_: NodeId, outcome: Outcome) -> Iterator[str]:
        return _outcome(outcome, batch)

    lines = performed(partial(Stage, scenario), told, came_out, _accidents(scenario))
    return [*_cast(scenario), *lines]


def performed(
    stage_for: Callable[..., Theatre[Any, Any, Any]],
    told: Callable[[NodeId, Message], str],
    came_out: Callable[[NodeId, Outcome], Iterable[str]],
    accidents: Iterable[tuple[int, str]] = (),
) -> list[str]:
    """What these find worth telling of a run, and what broke, in the order of time."""
    seen = [*accidents]

    def overhear(at_us: int, sender: NodeId, receiver: NodeId, message: Message) -> None:
        if words := told(sender, message):
            seen.append((at_us, f"{sender} to {receiver}: {words}"))

    def on_outcome(node: NodeId, outcome: Outcome, at_us: int) -> None:
        seen.extend((at_us, f"{node} {line}") for line in came_out(node, outcome))

    stage = stage_for(overhear=overhear, on_outcome=on_outcome)
    stage.perform()
    for fault in stage.planned:
        whom = f" of {', '.join(map(str, fault.nodes))}" if fault.nodes else ""
        until = f"until {fault.until_us / 1e6:.6f} s"
        seen.append((fault.from_us, f"-- {fault.kind.value}{whom} {until}"))
    scenario = stage.scenario
    seen += [(at_us, f"-- {node} crashes for good") for node, at_us in scenario.dying.items()]
    seen.append((scenario.calm_us, "-- calm"))
    seen.sort(key=itemgetter(0))
    return shortened([f"{at_us / 1e6:10.6f} s  {line}" for at_us, line in seen])


def shortened(lines: list[str]) -> list[str]:
    """The beginning and the end of a long story."""
    if len(lines) <= LINES_MAX:
        return lines
    half = LINES_MAX // 2
    return [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]


def is_about(sender: NodeId, message: Message, batch: BatchId) -> bool:
    """Whether a message carries, names or asks for this batch."""
    publisher = sender if isinstance(message, Publish) else getattr(message, "publisher", None)
    if publisher != batch.publisher or getattr(message, "topic", None) != batch.topic:
        return False
    if getattr(message, "lane", Lane.EVENTS) is not Lane.EVENTS:
        return False
    if isinstance(message, Fetch | Supply):
        return batch.sequence in message.sequences
    return _content(message, batch) is not None


def _content(message: Message, batch: BatchId) -> bytes | None:
    """The digest of the batch in a run."""
    at = batch.sequence - getattr(message, "first", batch.sequence + 1)
    if at < 0:
        return None
    run: list[bytes] = getattr(message, "payloads", None) or getattr(message, "digests", [])
    if at >= len(run):
        return None
    return digest(run[at]) if hasattr(message, "payloads") else run[at]


def _told(message: Message, batch: BatchId) -> str:
    kind = type(message).__name__
    if isinstance(message, Fetch):
        return f"Fetch {'the payload' if message.payload else 'your voice'}"
    if isinstance(message, Supply):
        payload = message.payloads[message.sequences.index(batch.sequence)]
        return f"Supply {_short(digest(payload))}"
    content = _content(message, batch)
    chain = f" of chain {message.chain}" if isinstance(message, Link) else ""
    return f"{kind} {_short(content) if content else ''}{chain}"


def _short(content: bytes) -> str:
    """A few characters for a content; a lie may change any byte of a digest, so all count."""
    return digest(content).hex()[:8]


def _outcome(outcome: Outcome, batch: BatchId) -> Iterator[str]:
    stream = getattr(outcome, "stream", None)
    if stream is None or (stream.publisher, stream.topic) != batch[:2]:
        return
    if isinstance(outcome, Delivery) and outcome.sequence == batch.sequence:
        how = f"on the word of {', '.join(map(str, outcome.vouchers))}"
        yield f"DELIVERS {_short(outcome.digest)} {how}{', by a history' * outcome.repaired}"
    elif isinstance(outcome, Receipt) and outcome.first <= batch.sequence <= outcome.last:
        if stream.lane is Lane.EVENTS:
            yield f"has a RECEIPT from {', '.join(map(str, outcome.replicas))}"
    elif isinstance(outcome, Skipped) and outcome.first <= batch.sequence:
        yield f"SKIPS {outcome.count} from {outcome.first} on, because {outcome.why}"


def _accidents(scenario: Scenario) -> Iterator[tuple[int, str]]:
    for cut in scenario.cuts:
        until = f"until {cut.until_us / 1e6:.6f} s"
        yield cut.from_us, f"-- cut from {cut.sender} to {cut.target} {until}"
    for part in scenario.sources:
        if part.crash_at_us is not None:
            yield part.crash_at_us, f"-- source {part.node} crashes for good"


def _cast(scenario: Scenario) -> Iterator[str]:
    contract = scenario.topic.contract
    histories = f", a history every {contract.history_every}" * bool(contract.history_every)
    mode, latency = scenario.network.mode.value, scenario.network.latency
    yield f"{contract.protocol}, order {contract.order}{histories}; {mode} links, {latency}"
    for replica in scenario.topic.members:
        yield f"replica {replica}: {scenario.hostile.get(replica, 'correct')}"
    for part in scenario.sources:
        attack = f" ({part.adversary})" if part.conduct is Conduct.BYZANTINE else ""
        yield f"source {part.node}: {part.conduct.value}{attack}"
    yield f"destinations: {', '.join(map(str, scenario.destinations))}"
