"""Commands where they are ordered: what one slot takes of them, others can be told."""

from typing import cast

import msgspec
import pytest

from commands import ANNA, LOG, cluster
from quorate.core import batch, columns
from quorate.core.codec import encode
from quorate.core.control import (
    CONTROL_TOPIC_ID,
    Command,
    Join,
    Register,
    Renew,
    encode_command,
)
from quorate.core.errors import DamagedError
from quorate.core.event import Event
from quorate.core.ids import NodeId
from quorate.core.ordering import (
    Append,
    Assigned,
    Concluded,
    Decision,
    Line,
    Partition,
    Propose,
    Received,
    Write,
)
from quorate.crypto.digests import descriptor
from quorate.protocol.control.machine import Control
from quorate.protocol.control.replica import Steward
from quorate.protocol.machine import Ready
from quorate.protocol.ordering.commands import Commands
from quorate.protocol.ordering.lines import COMMAND_BATCH_BYTES_MAX
from quorate.protocol.ordering.log import OrderLog
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.records import Decided, Placed, Store, Stretch
from quorate.protocol.ordering.replica import Ordering
from quorate.protocol.ordering.territory import SLOT_COMMANDS_MAX
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of
from quorate.protocol.outbox import ANSWERS_BYTES_MAX, Outbox
from quorate.sim.disks import SimDisk
from quorate.sim.order_stage import SimSigner
from quorate.sim.stores import SimStore
from stage import event

LINE = Line(ANNA, CONTROL_TOPIC_ID, 0)
NAMES = {client.number: client.name for client in cluster().clients}
# Of what makes no command as well, as much as replicas let wait.
COMMANDS = [event(bytes(COMMAND_BATCH_BYTES_MAX - len(event(b""))))] * 2048
CHAINS = chain_of(CHAIN_START, map(descriptor, COMMANDS))
WALL_US = 1_000_000


class Replica:
    """One of four; the first leads."""

    def __init__(self, me: NodeId) -> None:
        self._outbox = Outbox()
        store = SimStore(SimDisk(), 1 << 62)
        self._ordering = Ordering(
            me, (), NAMES, signer=SimSigner(me), store=store, found=store.found(),
            wall_us=lambda _: WALL_US, outbox=self._outbox, cluster=cluster(),
        )  # fmt: skip
        for first in (1, 1025):
            self.step(ANNA, Append(*LINE[1:], first, COMMANDS[:1024]))

    def step(self, sender: NodeId, message: Append | Received | Propose) -> Ready:
        self._ordering.step(sender, message)
        self._ordering.flush()
        return self._outbox.take()


def test_whatever_a_slot_orders_of_commands_can_be_told_to_those_who_lag_behind() -> None:
    leader = Replica(0)
    leader.step(1, Received(*LINE, 2048, CHAINS[-1]))
    ready = leader.step(2, Received(*LINE, 2048, CHAINS[-1]))

    (value,) = {message.value for _, message in ready.send if isinstance(message, Propose)}

    (span,) = Value.decode(value).spans
    commands = COMMANDS[: span.batches]
    descriptors = b"".join(map(descriptor, commands))
    assert encode(Decision(GroupKind.BYZANTINE, 1, value, descriptors, commands))


@pytest.mark.parametrize("excess", [0, 1])
def test_a_leader_that_orders_more_commands_than_others_can_be_told_is_not_followed(
    excess: int,
) -> None:
    count = SLOT_COMMANDS_MAX + excess
    value = Value(WALL_US, (Span(*LINE, 1, count, CHAINS[count - 1]),)).encode()
    ready = Replica(1).step(0, Propose(GroupKind.BYZANTINE, 1, 1, value))
    is_written = any(isinstance(message, Write) for _, message in ready.send)
    assert is_written == (not excess)
    assert [report.node for report in ready.reports] == [0] * excess


class Kept:
    """A store that has these commands from its first offset on."""

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = payloads

    def read(self, partition: Partition, offset: int, bytes_max: int) -> list[Stretch]:
        left = self._payloads[offset:]
        return [Stretch(ANNA, offset, 1 + offset, WALL_US, b"", b"", left)] if left else []


@pytest.mark.parametrize("damage", ["none", "one is altered", "one is gone"])
def test_a_replica_that_restarts_carries_out_what_was_decided_or_nothing(damage: str) -> None:
    """With one command more or less it would have another cluster than the others."""
    commands = [
        batch.encode([Event(None, encode_command(Register(topic)))]) for topic in ("orders", "news")
    ]
    descriptors = b"".join(map(descriptor, commands))
    placed = Placed(ANNA, CONTROL_TOPIC_ID, 0, 1, 0, 0, descriptors, b"", b"")
    found = {
        "none": commands,
        "one is altered": [commands[0], commands[1][:-1] + b"?"],
        "one is gone": commands[:1],
    }
    steward = Steward(Control(cluster()), Outbox())
    store = cast(Store, Kept(found[damage]))
    replayed = Commands(steward, OrderLog(GroupKind.BYZANTINE), store)
    decided = Decided(GroupKind.BYZANTINE, 1, WALL_US, b"", [placed])
    if damage == "none":
        replayed.replay(decided)
        assert steward.control.may_publish(ANNA, "orders")
    else:
        with pytest.raises(DamagedError, match="commands of slot 1 are not on disk as they were"):
            replayed.replay(decided)
        assert not steward.control.may_publish(ANNA, "orders")


def command_of(command: Command) -> bytes:
    return batch.encode([Event(None, encode_command(command))])


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_batch_that_is_compressed_is_no_command_and_stays_so(
    compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some hundred bytes of it would keep every replica busy for a third of a second."""
    command = Event(None, encode_command(Register("orders")))
    payload = batch.encode([command, Event(None, bytes(1 << 20))], compression=compression)
    monkeypatch.setattr(columns, "_decompressed", lambda *_: pytest.fail("it was decompressed"))
    outbox = Outbox()
    steward = Steward(Control(cluster()), outbox)
    steward.carry_out(ANNA, 1, [payload], WALL_US)
    assert not steward.control.may_publish(ANNA, "orders")
    ((node, concluded),) = outbox.take().send
    assert node == ANNA
    assert isinstance(concluded, Concluded)
    assert concluded.sentence.startswith("this is not a command")


def test_whoever_renews_a_thousand_times_at_once_hears_of_its_partitions_a_few_times() -> None:
    outbox = Outbox()
    steward = Steward(Control(cluster({"orders": {**LOG, "partitions": 512}})), outbox)
    commands = [Join(f"crew/{number}", ["orders"]) for number in range(8)]
    steward.carry_out(ANNA, 1, [command_of(each) for each in commands], WALL_US)
    outbox.take()
    steward.carry_out(ANNA, 9, [command_of(Renew())] * 1000, WALL_US)
    sent = [message for _, message in outbox.take().send]
    assert len([each for each in sent if isinstance(each, Concluded)]) == 1000
    told = [each for each in sent if isinstance(each, Assigned)]
    assert len(msgspec.msgpack.encode(told)) < ANSWERS_BYTES_MAX
    assert {each.group for each in told} == {f"crew/{number}" for number in range(8)}
    # The next time it hears of them again.
    steward.carry_out(ANNA, 1009, [command_of(Renew())], WALL_US)
    assert len([each for _, each in outbox.take().send if isinstance(each, Assigned)]) == 8
