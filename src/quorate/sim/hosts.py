"""A host: the place where one machine runs, and what survives the machine.

A crash ends a machine and begins the host's next incarnation; whatever was under way for the
old one (timers, syncs, delayed parts) carries the old number and comes to nothing. A pause
takes the machine off the processor and keeps everything.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from quorate.core.ids import NodeId
from quorate.protocol.machine import Machine, Ready
from quorate.sim.disks import SimDisk
from quorate.sim.links import Link
from quorate.sim.twins import Side

if TYPE_CHECKING:
    from quorate.sim.streams import Session

MakeMachine: TypeAlias = Callable[[], Machine]
# What an adversary makes of a `Ready`: parts, each with the delay after which it happens.
Rewrite: TypeAlias = Callable[[Ready, int], list[tuple[int, Ready]]]


@dataclass(slots=True, eq=False)
class Host:
    """One machine's place in the world. Two hosts with one node number are twins."""

    node: NodeId
    make_machine: MakeMachine
    _: KW_ONLY
    disk: SimDisk
    rewrite: Rewrite | None
    side: Side = Side.A
    twin: "Host | None" = None
    peers: dict[NodeId, None] = field(default_factory=dict)
    links: dict[NodeId, Link] = field(default_factory=dict)
    sessions: "dict[Host, Session]" = field(default_factory=dict)
    # The machine that can act now. None while the host is down or paused.
    machine: Machine | None = field(init=False)
    asleep: Machine | None = None
    # What a paused machine will find when it wakes up.
    backlog: list[Callable[[Machine], object]] = field(default_factory=list)
    incarnation: int = 0
    now_us: int = -1
    due: bool = False
    timers: set[int] = field(default_factory=set)
    # While a sync runs, everything that the machine wants waits behind it.
    syncing: bool = False
    waiting: list[Ready] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = self.make_machine()

    @property
    def is_up(self) -> bool:
        """Running or paused, but not crashed."""
        return self.machine is not None or self.asleep is not None

    def pause(self) -> None:
        self.machine, self.asleep = None, self.machine

    def wake(self) -> Machine:
        """Back on the processor. The backlog is for the caller to hand over."""
        assert self.asleep is not None
        self.machine, self.asleep = self.asleep, None
        return self.machine

    def lose_everything_in_memory(self) -> None:
        self.machine = self.asleep = None
        self.incarnation += 1
        self.syncing = False
        for memory in (self.timers, self.waiting, self.backlog):
            memory.clear()

    def begin_again(self) -> None:
        """A fresh machine, made from whatever its maker reads from the disk."""
        self.now_us = -1
        self.machine = self.make_machine()
