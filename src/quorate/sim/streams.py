"""Connections that behave like TCP.

While a connection stands, each direction is a queue: messages leave it in the order in which
they entered, and every arrival that the fabric schedules lets exactly one out. That makes order
a matter of course, whatever the delays. A blocked connection lets nothing out; when the way is
free again in time, what was held arrives after one more latency. When it is not, the connection
breaks: both ends are told, everything in flight is gone, and a new connection is made once the
two can reach each other again.

Nothing polls. A session looks at its situation when an obstacle, a crash, a pause or a split
changes it, so that a world in which nothing happens is idle.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from quorate.core.ids import NodeId
from quorate.core.messages import Message
from quorate.sim.clock import Agenda
from quorate.sim.hosts import Host
from quorate.sim.links import Fabric, Link, Network


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a connection."""

    sender: Host
    receiver: Host
    link: Link
    queue: deque[Message] = field(default_factory=deque)
    # Arrivals that found the connection blocked.
    held: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """Two hosts that want to be connected, and their connection when there is one."""

    # By who sends: one direction after the other.
    pipes: dict[Host, Pipe]
    is_up: bool = False
    is_blocked: bool = False
    is_dialling: bool = False
    # Numbers, so that what was scheduled for an earlier one knows that it is over.
    connection: int = 0
    stall: int = 0

    @property
    def ends(self) -> tuple[Host, Host]:
        one, other = self.pipes
        return one, other


class Streams:
    """All connections of a world."""

    def __init__(
        self,
        network: Network,
        fabric: Fabric,
        agenda: Agenda,
        *,
        may_talk: Callable[[Host, Host], bool],
        deliver: Callable[[Host, NodeId, Message], None],
        tell: Callable[[Host, NodeId, bool], None],
    ) -> None:
        self._network = network
        self._fabric = fabric
        self._agenda = agenda
        self._may_talk = may_talk
        self._deliver = deliver
        self._tell = tell
        self._sessions: list[Session] = []

    def join(self, one: Host, other: Host) -> None:
        """These two keep a connection to each other from now on, whenever they can."""
        directions = ((one, other), (other, one))
        session = Session({a: Pipe(a, b, Link(a.node, b.node)) for a, b in directions})
        one.sessions[other] = other.sessions[one] = session
        self._sessions.append(session)
        self._look(session)

    def send(self, sender: Host, receiver: Host, message: Message) -> bool:
        """False when there is no connection: the message is gone."""
        session = sender.sessions.get(receiver)
        if session is None or not session.is_up:
            return False
        pipe = session.pipes[sender]
        pipe.queue.append(message)
        at_us = self._fabric.stream_arrival(pipe.link, self._agenda.now_us)
        self._agenda.at(at_us, partial(self._arrive, session, pipe, session.connection))
        return True

    def look_at_all(self) -> None:
        """Obstacles came or went."""
        for session in self._sessions:
            self._look(session)

    def look_at(self, host: Host) -> None:
        """This host came back, or was split off from some peers."""
        for session in host.sessions.values():
            self._look(session)

    def fall(self, host: Host) -> None:
        """This host crashed: its peers see their connections break."""
        for session in host.sessions.values():
            if session.is_up:
                self._break(session)

    def hang_up(self, one: Host, other: Host) -> None:
        session = one.sessions.get(other)
        if session is not None and session.is_up:
            self._break(session)

    def _look(self, session: Session) -> None:
        one, other = session.ends
        if session.is_up and not self._may_talk(one, other):
            self._break(session)
        elif session.is_up:
            self._stall_or_go_on(session, self._is_free(session))
        elif not session.is_dialling and self._can_connect(session):
            session.is_dialling = True
            delay_us = self._fabric.next_reconnect_us()
            self._agenda.at(self._agenda.now_us + delay_us, partial(self._connect, session))

    def _is_free(self, session: Session) -> bool:
        # Acknowledgements need the way back: one direction that is cut blocks both.
        one, other = (host.node for host in session.ends)
        return not (self._fabric.blocks(one, other) or self._fabric.blocks(other, one))

    def _can_connect(self, session: Session) -> bool:
        one, other = session.ends
        awake = one.machine is not None and other.machine is not None
        return awake and self._may_talk(one, other) and self._is_free(session)

    def _connect(self, session: Session) -> None:
        session.is_dialling = False
        if not self._can_connect(session):
            return
        session.is_up = True
        session.connection += 1
        one, other = session.ends
        self._tell(one, other.node, True)
        self._tell(other, one.node, True)

    def _stall_or_go_on(self, session: Session, free: bool) -> None:
        if free and session.is_blocked:
            session.is_blocked = False
            for pipe in session.pipes.values():
                self._let_go(session, pipe)
        elif not free and not session.is_blocked:
            session.is_blocked = True
            session.stall += 1
            give_up = partial(self._give_up, session, session.connection, session.stall)
            self._agenda.at(self._agenda.now_us + self._network.break_after_us, give_up)

    def _let_go(self, session: Session, pipe: Pipe) -> None:
        held, pipe.held = pipe.held, 0
        arrive = partial(self._arrive, session, pipe, session.connection)
        at_us = self._agenda.now_us + self._fabric.next_latency_us()
        for _ in range(held):
            self._agenda.at(at_us, arrive)

    def _give_up(self, session: Session, connection: int, stall: int) -> None:
        same = (session.connection, session.stall) == (connection, stall)
        if same and session.is_up and session.is_blocked:
            self._break(session)

    def _break(self, session: Session) -> None:
        session.is_up = session.is_blocked = False
        for pipe in session.pipes.values():
            pipe.queue.clear()
            pipe.held = 0
            pipe.link.arrives_us = 0
            if not self._has_the_other_twin(pipe):
                self._tell(pipe.sender, pipe.receiver.node, False)
        self._look(session)

    def _has_the_other_twin(self, pipe: Pipe) -> bool:
        # A peer that talks to both twins still has a link to that number when it lost one.
        twin = pipe.receiver.twin
        other = None if twin is None else pipe.sender.sessions.get(twin)
        return other is not None and other.is_up

    def _arrive(self, session: Session, pipe: Pipe, connection: int) -> None:
        if session.connection != connection or not session.is_up:
            return
        if session.is_blocked:
            pipe.held += 1
        else:
            self._deliver(pipe.receiver, pipe.sender.node, pipe.queue.popleft())
