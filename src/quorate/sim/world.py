"""The world: machines, and everything around them that can go wrong.

The world drives machines as the real driver does. A turn is: all messages that reach a node at
one instant are stepped, then one `Ready` is taken and carried out. Records go to the disk first,
and nothing else leaves before their sync is done; what the machine wants meanwhile waits behind
it and shares the next sync (group commit), so the order of what leaves is the order of the turns.

Everything random comes from the seed, by one stream of numbers per purpose: one more draw in one
place changes nothing in another. One seed is one run, down to the digest of its trace.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from functools import partial
from random import Random
from sys import maxsize
from typing import Any, TypeAlias

from quorate.core.errors import LocalProtocolError
from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.protocol.machine import Machine, Outcome, Ready, Report
from quorate.sim.clock import SLOT_BITS, Action, Agenda
from quorate.sim.disks import SimDisk
from quorate.sim.hosts import Host, MakeMachine, Rewrite
from quorate.sim.links import (
    Constant,
    Cut,
    Fabric,
    Latency,
    Link,
    Loss,
    Mode,
    Network,
    Obstacle,
    Partition,
)
from quorate.sim.recorder import Trace
from quorate.sim.streams import Streams
from quorate.sim.twins import EVERYBODY_HAS_BOTH, Side, Split

OnOutcome: TypeAlias = Callable[[NodeId, Outcome, int], object]
OnReport: TypeAlias = Callable[[NodeId, Report, int], object]

_WORD_MAX = 2**64 - 1
# As measured on a common SSD.
FAST_SYNC = Constant(800)


class Halt(Enum):
    """Why a run came to its end."""

    IDLE = "nothing is left to happen"
    TIME = "the time is up"


class World:
    """Nodes, links and disks in virtual time.

    `faults` counts what was done to the nodes and links, `traffic` what became of messages
    that did not simply arrive, `deliveries` those that did. `sync` is how long a disk takes.
    """

    def __init__(
        self,
        seed: int,
        *,
        network: Network,
        sync: Latency = FAST_SYNC,
        on_outcome: OnOutcome | None = None,
        on_report: OnReport | None = None,
        paused_messages_max: int = 10_000,
    ) -> None:
        self.seed = seed
        self.deliveries = 0
        self.faults: Counter[str] = Counter()
        self.traffic: Counter[str] = Counter()
        self.trace = Trace()
        self._on_outcome = on_outcome
        self._on_report = on_report
        self._paused_messages_max = paused_messages_max
        self._agenda = Agenda()
        self._hosts: dict[NodeId, Host] = {}
        self._splits: dict[NodeId, Split] = {}
        self._due: list[Host] = []
        self._disk_random = self.random("disk")
        self._next_sync_us = iter(sync.samples(self.random("sync"))).__next__
        self._fabric = Fabric(network, self.random)
        self._streams: Streams | None = None
        if network.mode is Mode.STREAM:
            self._streams = Streams(
                network,
                self._fabric,
                self._agenda,
                may_talk=self._may_talk,
                deliver=self._deliver,
                tell=self._tell_of_link,
            )

    @property
    def now_us(self) -> int:
        return self._agenda.now_us

    def random(self, purpose: str) -> Random:
        """The numbers that this world's seed holds for one purpose."""
        return Random(f"{self.seed}:{purpose}")

    # Building

    def add(
        self,
        node: NodeId,
        make_machine: MakeMachine,
        *,
        peers: Iterable[NodeId] | None = None,
        rewrite: Rewrite | None = None,
        disk: SimDisk | None = None,
    ) -> None:
        """A node. It has links with `peers`, by default with all nodes that are there already.

        `make_machine` is called now and at every restart. Links are mutual, so a peer that is
        not there yet names this node when it is added itself.
        """
        if node in self._hosts:
            raise LocalProtocolError(f"node {node} is in the world already; a second is a twin")
        host = Host(node, make_machine, disk=disk or SimDisk(), rewrite=rewrite)
        for peer in self._hosts if peers is None else peers:
            other = self._hosts.get(peer)
            if other is None:
                raise LocalProtocolError(
                    f"node {node} names peer {peer}, which is not in the world yet: links are "
                    f"mutual, so name {node} when {peer} is added"
                )
            host.peers[other.node] = other.peers[host.node] = None
        self._hosts[node] = host
        self._agenda.at(self.now_us, partial(self._introduce, host, tuple(host.peers)))

    def add_twin(
        self,
        node: NodeId,
        make_machine: MakeMachine,
        *,
        split: Split = EVERYBODY_HAS_BOTH,
        rewrite: Rewrite | None = None,
        disk: SimDisk | None = None,
    ) -> None:
        """A second machine with this node's identity; `split` says which peers talk to which."""
        first = self._host(node)
        if first.twin is not None:
            raise LocalProtocolError(f"node {node} has a twin already; it can have one")
        twin = Host(node, make_machine, disk=disk or SimDisk(), rewrite=rewrite, side=Side.B)
        twin.peers = first.peers
        first.twin, twin.twin = twin, first
        self._splits[node] = split
        self._agenda.at(self.now_us, partial(self._introduce, twin, tuple(twin.peers)))
        self._agenda.at(self.now_us, partial(self.split, node, split))

    def split(self, node: NodeId, split: Split) -> None:
        """From now on these peers talk to these twins."""
        self._splits[node] = split
        if self._streams is not None:
            for host in self._instances(node):
                self._streams.look_at(host)

    def machine(self, node: NodeId, side: Side = Side.A) -> Any:
        """The machine that runs there, to look at; None while the node is down."""
        (host,) = self._instances(node, side)
        return host.machine or host.asleep

    def disk(self, node: NodeId, side: Side = Side.A) -> SimDisk:
        (host,) = self._instances(node, side)
        return host.disk

    # Running

    def inject(self, at_us: int, action: Action) -> None:
        """Do anything at this time: a fault, a look around, one more injection."""
        self._agenda.at(at_us, action)

    def call(
        self,
        at_us: int,
        node: NodeId,
        action: Callable[[Any], object],
        *,
        side: Side = Side.BOTH,
    ) -> None:
        """Do this with the node's machine at this time, and then take its `Ready`.

        A paused node does it when it wakes up, a crashed one never.
        """
        for host in self._instances(node, side):
            self._agenda.at(at_us, partial(self._with_machine, host, action))

    def run(self, until_us: int | None = None) -> Halt:
        """Let time pass up to and including this instant, or until nothing is left to happen."""
        agenda, until = self._agenda, maxsize if until_us is None else until_us
        try:
            while self._due or agenda.has_current or agenda.advance(until):
                self._live_through_slot(until)
                if agenda.has_current:
                    break
        except Exception as error:
            error.add_note(f"in the simulated world of seed {self.seed} at {self.now_us} us")
            raise
        agenda.now_us = max(agenda.now_us, until_us or 0)
        return Halt.IDLE if agenda.is_empty else Halt.TIME

    # Faults

    def crash(self, node: NodeId) -> None:
        """The machine is gone, and with it what was not on disk. No effect on a crashed node."""
        for host in self._instances(node):
            if host.is_up:
                host.lose_everything_in_memory()
                fate = host.disk.crash(self._disk_random)
                if fate:
                    self._count_fault(f"unsynced writes {fate}", node)
                self._count_fault("crash", node)
                if self._streams is not None:
                    self._streams.fall(host)

    def restart(self, node: NodeId, *, amnesia: bool = False) -> None:
        """A fresh machine with the old disk, or with an empty one. Only for a crashed node."""
        for host in self._instances(node):
            if not host.is_up:
                if amnesia:
                    host.disk.wipe()
                self._count_fault("restart with amnesia" if amnesia else "restart", node)
                host.begin_again()
                self._return(host)

    def pause(self, node: NodeId) -> None:
        """As SIGSTOP: the machine does nothing, and what reaches it waits in a bounded queue."""
        for host in self._instances(node):
            if host.machine is not None:
                host.pause()
                self._count_fault("pause", node)

    def resume(self, node: NodeId) -> None:
        for host in self._instances(node):
            if host.asleep is not None:
                machine = host.wake()
                self.trace.note("resume", node)
                self._touch(host, machine)
                backlog, host.backlog = host.backlog, []
                for action in backlog:
                    action(machine)
                if self._streams is not None:
                    self._streams.look_at(host)

    def partition(
        self,
        groups: Collection[Collection[NodeId]],
        *,
        from_us: int | None = None,
        until_us: int | None = None,
    ) -> None:
        """Groups that cannot reach each other; the nodes not named are one more group."""
        self._obstruct("partition", Partition(groups), from_us, until_us)

    def cut(
        self,
        sender: NodeId,
        target: NodeId,
        *,
        from_us: int | None = None,
        until_us: int | None = None,
    ) -> None:
        """Nothing gets through from one node to another; the way back is free."""
        self._obstruct("cut", Cut(sender, target), from_us, until_us)

    def disturb(
        self, loss: Loss, *, from_us: int | None = None, until_us: int | None = None
    ) -> None:
        """A spell in which all links lose messages like this."""

        def begin() -> None:
            self._fabric.begin(loss)
            self._count_fault("loss")

        self._during(from_us, until_us, begin, partial(self._fabric.end, loss))

    def heal(self) -> None:
        """Every partition, cut and spell ends now."""
        self._fabric.clear()
        self._look_at_links()

    # One instant after the other

    def _live_through_slot(self, until_us: int) -> None:
        """Work through the agenda's slot, up to this time."""
        agenda, due, seen = self._agenda, self._due, self.trace.words.append
        entries, position, now_us = agenda.current, agenda.position, agenda.now_us
        deliveries = 0
        try:
            while True:
                if position == len(entries) or entries[position][0] != now_us:
                    # The instant is over when its turns are taken, and not even then if they
                    # put down something that comes before what would have come next.
                    if due:
                        self._take_turns()
                        continue
                    if position == len(entries) or entries[position][0] > until_us:
                        return
                at_us, host, sender, content = entries[position]
                position += 1
                if at_us != now_us:
                    agenda.now_us = now_us = at_us
                    seen(now_us)
                if host is None:
                    content()
                    continue
                machine = host.machine
                if machine is None:
                    self._deliver(host, sender, content)
                    continue
                # `_touch` and `_step`, spelled out: nothing runs more often than this.
                if not host.due:
                    host.due = True
                    due.append(host)
                    if host.now_us != now_us:
                        host.now_us = now_us
                        machine.tick(now_us)
                machine.step(sender, content)
                seen((sender << 32 ^ host.node) & _WORD_MAX)
                deliveries += 1
        finally:
            agenda.position = position
            self.deliveries += deliveries
            self.trace.flush_when_long()

    def _take_turns(self) -> None:
        due = self._due
        # A turn can bring about another one at the same instant, so the list may grow.
        for host in due:
            host.due = False
            machine = host.machine
            # An action of the same instant may have crashed or paused it after its step.
            if machine is None:
                continue
            ready = machine.take()
            if host.rewrite is not None:
                self._carry_out_rewritten(host, ready, host.rewrite)
            elif ready:
                self._carry_out(host, ready)
        due.clear()

    def _touch(self, host: Host, machine: Machine) -> None:
        """The machine is about to hear something: it knows the time, and has a turn coming."""
        if not host.due:
            host.due = True
            self._due.append(host)
        if host.now_us != self.now_us:
            host.now_us = self.now_us
            machine.tick(self.now_us)

    def _with_machine(self, host: Host, action: Callable[[Machine], object]) -> None:
        """Now if the host is awake, when it wakes up if it is paused, never if it is down."""
        if host.machine is not None:
            self._touch(host, host.machine)
            action(host.machine)
        elif host.asleep is not None:
            host.backlog.append(action)

    def _deliver(self, host: Host, sender: NodeId, message: Message) -> None:
        if host.machine is not None:
            self._touch(host, host.machine)
            self._step(host, sender, message, host.machine)
        elif host.asleep is None:
            self.traffic["to a crashed node"] += 1
        elif len(host.backlog) < self._paused_messages_max:
            host.backlog.append(partial(self._step, host, sender, message))
        else:
            self.traffic["over the bound of a paused node"] += 1
            self._hang_up(host, sender)

    def _step(self, host: Host, sender: NodeId, message: Message, machine: Machine) -> None:
        machine.step(sender, message)
        self.trace.words.append((sender << 32 ^ host.node) & _WORD_MAX)
        self.deliveries += 1

    # Carrying out

    def _carry_out(self, host: Host, ready: Ready) -> None:
        if ready.timers:
            self._set_timers(host, ready.timers)
        if ready.reports and self._on_report is not None:
            for report in ready.reports:
                self._on_report(host.node, report, self.now_us)
        if ready.persist:
            self.trace.note("persist", host.node, ready.persist)
            host.disk.append(ready.persist)
        if host.syncing:
            host.waiting.append(ready)
        elif ready.sync:
            self._begin_sync(host, [ready])
        else:
            self._release(host, ready)

    def _carry_out_rewritten(self, host: Host, ready: Ready, rewrite: Rewrite) -> None:
        for delay_us, part in rewrite(ready, self.now_us):
            if delay_us <= 0:
                self._carry_out(host, part)
            else:
                self._later(host, delay_us, partial(self._carry_out, host, part))

    def _begin_sync(self, host: Host, readies: list[Ready]) -> None:
        host.syncing = True
        done = partial(self._end_sync, host, readies, host.disk.written_bytes)
        self._later(host, self._next_sync_us(), done)

    def _end_sync(self, host: Host, readies: list[Ready], through: int) -> None:
        host.disk.sync(through)
        host.syncing = False
        for ready in readies:
            self._release(host, ready)
        waiting, host.waiting = host.waiting, []
        if any(ready.sync for ready in waiting):
            self._begin_sync(host, waiting)
        else:
            for ready in waiting:
                self._release(host, ready)

    def _release(self, host: Host, ready: Ready) -> None:
        if ready.send:
            if self._fabric.is_plain and not self._splits:
                self._send_plainly(host.node, ready.send)
            else:
                self._send(host, ready.send)
        for outcome in ready.deliver:
            self.trace.note("outcome", host.node, outcome)
            if self._on_outcome is not None:
                self._on_outcome(host.node, outcome, self.now_us)

    def _set_timers(self, host: Host, timers: Iterable[int]) -> None:
        for at_us in timers:
            # It was ticked at this instant: a timer for now or earlier asks for another one.
            at_us = max(at_us, self.now_us + 1)
            if at_us not in host.timers:
                host.timers.add(at_us)
                self._agenda.at(at_us, partial(self._wake, host, host.incarnation, at_us))

    def _wake(self, host: Host, incarnation: int, at_us: int) -> None:
        if host.incarnation == incarnation:
            host.timers.discard(at_us)
            # A paused machine is ticked when it wakes up, whatever its timers.
            if host.machine is not None:
                self._touch(host, host.machine)

    def _later(self, host: Host, delay_us: int, action: Action) -> None:
        """In a while, unless the host crashes; not before it wakes up, if it is paused."""
        act = partial(self._unless_crashed, host, host.incarnation, action)
        self._agenda.at(self.now_us + delay_us, act)

    def _unless_crashed(self, host: Host, incarnation: int, action: Action) -> None:
        if host.incarnation == incarnation:
            if host.asleep is None:
                action()
            else:
                host.backlog.append(lambda machine: action())

    # Sending

    def _send_plainly(self, sender: NodeId, sends: Iterable[tuple[NodeId, Message]]) -> None:
        """`_send` where nothing can go wrong, with the agenda's `put` spelled out."""
        agenda, next_latency_us, hosts = self._agenda, self._fabric.next_latency_us, self._hosts
        now_us, slots = agenda.now_us, agenda.slots
        for target, message in sends:
            receiver = hosts.get(target)
            if receiver is None:
                self.traffic["to nobody"] += 1
                continue
            at_us = now_us + next_latency_us() if target != sender else now_us
            slot = slots.get(at_us >> SLOT_BITS)
            if slot is None:
                agenda.put((at_us, receiver, sender, message))
            else:
                slot.append((at_us, receiver, sender, message))

    def _send(self, host: Host, sends: Iterable[tuple[NodeId, Message]]) -> None:
        transmit = self._send_datagram if self._streams is None else self._send_in_stream
        for target, message in sends:
            if target == host.node:
                self._agenda.arrive(self.now_us, host, host.node, message)
                continue
            receivers = self._receivers(host, target)
            if not receivers:
                self.traffic["to nobody"] += 1
            for receiver in receivers:
                carried = self._fabric.carried(message)
                if carried is not message:
                    self.traffic["altered"] += 1
                transmit(host, receiver, carried)

    def _send_datagram(self, host: Host, receiver: Host, message: Message) -> None:
        target = receiver.node
        link = host.links.get(target)
        if link is None:
            link = host.links[target] = Link(host.node, target)
        arrivals = self._fabric.arrivals(link, self.now_us)
        for at_us in arrivals:
            self._agenda.arrive(at_us, receiver, host.node, message)
        if len(arrivals) != 1:
            self.traffic["doubled" if arrivals else "lost"] += 1

    def _send_in_stream(self, host: Host, receiver: Host, message: Message) -> None:
        assert self._streams is not None
        if not self._streams.send(host, receiver, message):
            self.traffic["without a connection"] += 1

    def _receivers(self, host: Host, target: NodeId) -> Collection[Host]:
        receiver = self._hosts.get(target)
        if receiver is None:
            return ()
        if receiver.twin is None and host.twin is None:
            return (receiver,)
        return [found for found in self._instances(target) if self._may_talk(host, found)]

    def _may_talk(self, one: Host, other: Host) -> bool:
        return self._is_joined(one, other.node) and self._is_joined(other, one.node)

    def _is_joined(self, host: Host, peer: NodeId) -> bool:
        split = self._splits.get(host.node)
        return split is None or split.joins(peer, host.side)

    # Links

    def _introduce(self, host: Host, peers: Iterable[NodeId]) -> None:
        """A new host begins, and meets its peers."""
        if host.machine is not None:
            self._touch(host, host.machine)
        for node in peers:
            for peer in self._instances(node):
                if self._streams is not None:
                    self._streams.join(host, peer)
                elif self._may_talk(host, peer):
                    self._tell_of_link(host, node, True)
                    self._tell_of_link(peer, host.node, True)

    def _return(self, host: Host) -> None:
        """A restarted host meets its peers again."""
        if host.machine is not None:
            self._touch(host, host.machine)
        if self._streams is not None:
            self._streams.look_at(host)
        else:
            for peer in host.peers:
                self._tell_of_link(host, peer, True)

    def _tell_of_link(self, host: Host, peer: NodeId, is_up: bool) -> None:
        self.trace.note("connected" if is_up else "disconnected", host.node, peer)
        if is_up:
            self._with_machine(host, lambda machine: machine.connected(peer))
        else:
            self._with_machine(host, lambda machine: machine.disconnected(peer))

    def _hang_up(self, host: Host, peer: NodeId) -> None:
        # A connection cannot lose one message and go on.
        if self._streams is not None:
            for other in self._instances(peer):
                self._streams.hang_up(host, other)

    # Obstacles

    def _obstruct(
        self, name: str, obstacle: Obstacle, from_us: int | None, until_us: int | None
    ) -> None:
        def begin() -> None:
            self._fabric.put(obstacle)
            self._count_fault(name)
            self._look_at_links()

        def end() -> None:
            self._fabric.remove(obstacle)
            self._look_at_links()

        self._during(from_us, until_us, begin, end)

    def _during(
        self, from_us: int | None, until_us: int | None, begin: Action, end: Action
    ) -> None:
        """From now on, if nothing else is said, and for good."""
        self._agenda.at(self.now_us if from_us is None else from_us, begin)
        if until_us is not None:
            self._agenda.at(until_us, end)

    def _look_at_links(self) -> None:
        if self._streams is not None:
            self._streams.look_at_all()

    # Finding

    def _host(self, node: NodeId) -> Host:
        host = self._hosts.get(node)
        if host is None:
            raise LocalProtocolError(f"node {node} is not in this world")
        return host

    def _instances(self, node: NodeId, side: Side = Side.BOTH) -> list[Host]:
        """The node's host, or both when it has a twin."""
        host = self._host(node)
        hosts = [host] if host.twin is None else [host, host.twin]
        return [host for host in hosts if host.side in side]

    def _count_fault(self, kind: str, node: NodeId | None = None) -> None:
        self.faults[kind] += 1
        self.trace.note(kind, node)
