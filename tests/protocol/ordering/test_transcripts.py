"""Agreement and leader change as transcripts, to be read as documentation.

Each file in `transcripts` is a story. A block is a command, `----`, and what comes of it; lines
with # are for the reader. With QUORATE_REWRITE=1 the outcomes are written anew: look at the diff
before you believe them.

    group byzantine f=1 [without 3]     a fresh group; those without a machine are Byzantine
    hide RECEIVED ORDERED               messages that the story does not show
    publish A1-2 [to 0,1]               a publisher hands in batches; A1=x has another content
    deliver [PROPOSE] [from 0] [to 1]   what is in flight arrives, all of it or some
    drop [ACCEPT] [from 0] [to 1]       or is lost
    settle [without 2] [losing ACCEPT]  deliver until nothing is in flight; the rest is lost
    run 600ms [without 2] [losing ..]   let time pass, and what is sent arrive
    say 3 to 0,1: WRITE r1 s1 A1        a Byzantine replica speaks
    complain 1                          a replica wants the next regency
    crash 0 / restart 0                 what was not synced is lost
    status                              where everybody stands

`r2 s5` is regency 2, slot 5. What a replica writes down stands before what it sends; `synced`
says that it may only send once that is on disk.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from council import BYZANTINE, CRASH, NAMES, A, B, C, Council, Flight, Turn
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.core.ordering import (
    Accept,
    Decision,
    Entries,
    Fill,
    Ordered,
    Promised,
    Propose,
    Received,
    Retrieve,
    Retrieved,
    Signed,
    Standing,
    State,
    Stop,
    StopData,
    Stored,
    Sync,
    Write,
)
from quorate.protocol.ordering.records import Decided, Held, Record, Voted
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of, value_digest
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimSigner
from stage import described, opened

HERE = Path(__file__).parent / "transcripts"
PUBLISHERS = {"A": A, "B": B, "C": C}
LETTERS = {node: letter for letter, node in PUBLISHERS.items()}


class Story:
    """Carries out commands, and tells what came of them."""

    def __init__(self) -> None:
        self.council = Council()
        self.hidden: set[str] = set()
        self.disks: dict[NodeId, SimDisk] = {}
        # The content of every batch that was named, with its chain.
        self.batches: dict[bytes, str] = {}
        self.values: dict[bytes, str] = {b"": "nothing"}

    def carry_out(self, command: str) -> list[str]:
        name, _, rest = command.partition(" ")
        before = len(self.council.turns)
        told = getattr(self, f"do_{name}")(rest) or []
        turns = self.council.turns[before:]
        lines = told + [line for turn in turns for line in self._told(turn)]
        # What is said again in the same words tells nothing new.
        return list(dict.fromkeys(lines)) or ["nothing"]

    # Commands

    def do_group(self, rest: str) -> None:
        kind, f, without = re.fullmatch(r"(\w+) f=(\d)(?: without ([\d,]+))?", rest).groups()  # type: ignore[union-attr]
        table = BYZANTINE if kind == "byzantine" else CRASH
        self.council = Council(table, int(f), byzantine=numbers(without))
        # Everybody says hello.
        self.council.drop()
        self.council.turns.clear()

    def do_hide(self, rest: str) -> list[str]:
        self.hidden = set(rest.split())
        return [f"{len(self.hidden)} kinds"]

    def do_publish(self, rest: str) -> None:
        what, _, to = rest.partition(" to ")
        publisher, first, payloads = self.batch(what)
        self.council.publish(publisher, first, *payloads, to=numbers(to) if to else None)

    def do_deliver(self, rest: str) -> None:
        self.council.deliver(self.chosen(rest))

    def do_drop(self, rest: str) -> list[str]:
        return [f"{self.council.drop(self.chosen(rest))} messages lost"]

    def do_settle(self, rest: str) -> None:
        self.council.settle(self.reached(rest))

    def do_run(self, rest: str) -> None:
        time, _, without = rest.partition(" ")
        self.council.run(int(time.removesuffix("ms")) / 1000, self.reached(without))

    def do_say(self, rest: str) -> None:
        sender, receivers, words = re.fullmatch(r"(\d) to ([\d,]+): (.*)", rest).groups()  # type: ignore[union-attr]
        self.council.say(int(sender), numbers(receivers), self.message(int(sender), words))

    def do_complain(self, rest: str) -> None:
        self.council.group(int(rest)).change.complain()
        self.council.collect()

    def do_crash(self, rest: str) -> list[str]:
        replica = int(rest)
        self.disks[replica] = self.council.seats[replica].disk
        self.council.crash(replica)
        return [f"{replica} is gone"]

    def do_restart(self, rest: str) -> list[str]:
        replica = int(rest)
        self.council.restart(replica, self.disks.pop(replica))
        return [f"{replica} is back"]

    def do_status(self, _: str) -> list[str]:
        return [self._standing(replica) for replica in self.council.seats]

    # Reading commands

    def batch(self, what: str) -> tuple[NodeId, int, list[bytes]]:
        """A1, A1-3, or A1=x where the content is another."""
        letter, first, last, content = re.fullmatch(
            r"([ABC])(\d+)(?:-(\d+))?(=\w+)?", what
        ).groups()  # type: ignore[union-attr]
        publisher, start = PUBLISHERS[letter], int(first)
        numbers = range(start, int(last or first) + 1)
        payloads = [f"{NAMES[publisher]}{n}{content or ''}".encode() for n in numbers]
        return publisher, start, payloads

    def value(self, words: str) -> bytes:
        """Spans of lines from their beginning, or from where earlier payloads end."""
        spans = []
        for what in words.split():
            publisher, first, payloads = self.batch(what)
            earlier = [f"{NAMES[publisher]}{n}".encode() for n in range(1, first)]
            chains = chain_of(CHAIN_START, map(described, [*earlier, *payloads]))
            spans.append(
                Span(publisher, self.council.topic.id, 0, first, len(payloads), chains[-1])
            )
            self.batches[chains[-1]] = what
        value = Value(self.time_us, tuple(spans)).encode()
        self.values[value_digest(value)] = words
        return value

    @property
    def time_us(self) -> int:
        return self.council.group(next(iter(self.council.seats))).clocks.time_of_day_us()

    def message(self, sender: NodeId, words: str) -> Message:
        group = self.council.number
        kind, _, rest = words.partition(" ")
        if kind == "STOP":
            return Stop(group, int(rest.removeprefix("r")))
        if kind == "STATE":
            return self.state_of(sender, group, int(rest.removeprefix("r")))
        regency, slot, what = re.fullmatch(r"r(\d+) s(\d+) (.*)", rest).groups()  # type: ignore[union-attr]
        value = self.value(what)
        if kind == "PROPOSE":
            return Propose(group, int(regency), int(slot), value)
        make = Write if kind == "WRITE" else Accept
        return make(group, int(regency), int(slot), value_digest(value))

    def state_of(self, sender: NodeId, group: int, regency: int) -> StopData:
        """A lie: that it has said nothing at all."""
        said = Promised(1, 0, b"", {})
        blank = msgspec.msgpack.encode(State(group, regency, 1, [said]))
        return StopData(group, regency, blank, SimSigner(sender).sign(blank), [])

    def chosen(self, rest: str) -> Callable[[Flight], bool]:
        kinds = set(re.findall(r"\b[A-Z]{4,}\b", rest))
        senders = re.search(r"from ([\d,]+)", rest)
        receivers = re.search(r"to ([\d,]+)", rest)

        def is_chosen(flight: Flight) -> bool:
            return (
                (not kinds or kind_of(flight.message) in kinds)
                and (not senders or flight.sender in numbers(senders[1]))
                and (not receivers or flight.receiver in numbers(receivers[1]))
            )

        return is_chosen

    def reached(self, rest: str) -> Callable[[Flight], bool]:
        away = re.search(r"without ([\d,]+)", rest)
        lost = set(re.findall(r"\b[A-Z]{4,}\b", rest))
        cut = numbers(away[1]) if away else ()
        return lambda flight: (
            not {flight.sender, flight.receiver} & {*cut} and kind_of(flight.message) not in lost
        )

    # Telling

    def _told(self, turn: Turn) -> Iterator[str]:
        who = turn.replica
        records = [line for record in turn.ready.persist if (line := self._record(record))]
        for at, line in enumerate(records):
            is_last = at == len(records) - 1 and turn.ready.sync
            yield f"{who}  {line}{' (synced)' if is_last else ''}"
        gathered: list[tuple[Message, list[NodeId]]] = []
        for node, message in turn.ready.send:
            if gathered and gathered[-1][0] is message:
                gathered[-1][1].append(node)
            else:
                gathered.append((message, [node]))
        for message, nodes in gathered:
            if kind_of(message) not in self.hidden:
                to = " ".join(LETTERS.get(node, str(node)) for node in nodes)
                yield f"{who} -> {to}: {self._message(message)}"
        for report in turn.ready.reports:
            yield f"{who}  reports {report.node}: {report.kind}, {report.detail}"

    def _record(self, record: Record) -> str:
        if isinstance(record, Held):
            return "holds " + " ".join(
                opened(payload).decode().capitalize() for payload in record.payloads
            )
        if isinstance(record, Voted):
            values = {value_digest(value): value for value in record.values}
            for content, value in values.items():
                self.values.setdefault(content, self._value(value))
            return f"notes r{record.regency} s{record.slot}: {self._said(record)}"
        if isinstance(record, Decided):
            return f"DECIDES s{record.slot}: {self._value(record.value)}"
        return "writes a snapshot"

    def _said(self, said: Voted | Promised) -> str:
        words = [f"wrote {self._name(content)} in r{ts}" for content, ts in said.written.items()]
        if said.accepted_in:
            words.append(f"accepted {self._name(said.accepted)} in r{said.accepted_in}")
        return ", ".join(words) or "nothing said"

    def _message(self, message: Message) -> str:  # noqa: C901
        kind = kind_of(message)
        if isinstance(message, Propose):
            self.values[value_digest(message.value)] = self._value(message.value)
            return f"{kind} r{message.regency} s{message.slot} {self._value(message.value)}"
        if isinstance(message, Write | Accept):
            return f"{kind} r{message.regency} s{message.slot} {self._name(message.digest)}"
        if isinstance(message, Stop):
            return f"{kind} r{message.regency}"
        if isinstance(message, StopData):
            return f"{kind} r{message.regency}, {self._state(message.state)}"
        if isinstance(message, Sync):
            states = "; ".join(self._signed(signed) for signed in message.states)
            return f"{kind} r{message.regency}, {states}"
        if isinstance(message, Decision):
            return f"{kind} s{message.slot} {self._value(message.value)}"
        if isinstance(message, Standing):
            synced = "" if message.is_synced else ", not synchronised"
            return f"{kind} r{message.regency} s{message.slot}{synced}"
        if isinstance(message, Ordered):
            return f"{kind} {message.count} from {message.first} at offset {message.offset}"
        if isinstance(message, Received):
            return f"{kind} {LETTERS[message.publisher]}1-{message.through}"
        if isinstance(message, Fill):
            return f"{kind} offsets {message.offset} to {message.end - 1}"
        if isinstance(message, Entries):
            held = " ".join(opened(payload).decode().capitalize() for payload in message.payloads)
            return f"{kind} {held} at offset {message.offset}"
        if isinstance(message, Stored | Retrieve):
            last = message.first + message.count - 1
            return f"{kind} {LETTERS[message.publisher]}{message.first}-{last}"
        if isinstance(message, Retrieved):
            last = message.first + len(message.descriptors) - 1
            return f"{kind} {LETTERS[message.publisher]}{message.first}-{last}"
        return kind

    def _signed(self, signed: Signed) -> str:
        return f"{signed.replica} {self._state(signed.state)}"

    def _state(self, data: bytes) -> str:
        state = msgspec.msgpack.decode(data, type=State)
        words = [f"s{promised.slot} {self._said(promised)}" for promised in state.promised]
        return f"is at s{state.slot} ({', '.join(words)})"

    def _name(self, content: bytes) -> str:
        return self.values.get(content, f"<{content.hex()[:6]}>")

    def _value(self, value: bytes) -> str:
        return " ".join(self._span(span) for span in Value.decode(value).spans)

    def _span(self, span: Span) -> str:
        last = f"-{span.end - 1}" if span.batches > 1 else ""
        named = self.batches.get(span.chain, "")
        content = named[named.index("=") :] if "=" in named else ""
        return f"{LETTERS[span.publisher]}{span.first}{last}{content}"

    def _standing(self, replica: NodeId) -> str:
        consensus = self.council.group(replica).consensus
        decided = self.council.seats[replica].store.decided(self.council.number, 1, 1 << 30)
        log = " ".join(self._value(each.value) for each in decided) or "empty"
        synced = "" if consensus.is_synced else ", not synchronised"
        return f"{replica}  r{consensus.regency} s{consensus.slot}{synced}: {log}"


def kind_of(message: Message) -> str:
    return {"StopData": "STATE"}.get(type(message).__name__, type(message).__name__.upper())


def numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


def rewritten(text: str) -> str:
    """The same story, with what comes of its commands today."""
    story = Story()
    told: list[str] = []
    for block in re.split(r"\n\n+", text.strip()):
        lines = block.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        commands = lines[len(comments) :]
        told += comments
        if commands:
            command = commands[0]
            told += [command, "----", *story.carry_out(command)]
        told.append("")
    return "\n".join(told)


@pytest.mark.parametrize("path", sorted(HERE.glob("*.txt")), ids=lambda path: path.stem)
def test_the_story_is_still_told_like_this(path: Path) -> None:
    told = rewritten(path.read_text())
    if os.environ.get("QUORATE_REWRITE"):
        path.write_text(told)
    assert told == path.read_text()
