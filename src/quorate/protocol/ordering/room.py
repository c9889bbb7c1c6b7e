"""How much of what is undecided a replica keeps, for whom.

Source: DESIGN section 8 (no input from outside may fill up a replica); docs/decisions/0016.

A client that tells each replica something else has nothing ordered, and all of it waits. So what
waits is bounded, in memory and on disk: for each session of a client over all its lines, and for
each client over all its sessions. A batch takes more than its payload, and a line more than its
batches; both are counted, and so are events, by the header of their batch.

An honest client is not held up by this:

- A source has less under way, over all its lines, than a replica takes of one session. What a
  replica holds of an honest session and has not decided, the source has no receipt for, or others
  have decided it. Of the former there is always room. The latter goes as the replica comes forward,
  which needs no room: what is decided, and what a slot is bound to, is taken in any case.
- Only registered sessions publish, and a client has no more of them than its room has parts
  (`control/state.py`). So sessions never take room from each other, and it cannot be that replicas
  are full with different batches of one client, none of which reaches a quorum.
- What waits of a session that is registered no more is dropped, and its part is free again
  (`backlog.py`). A session whose lease ended by mistake registers again, and its source hands in
  again all that has no receipt.
- Commands need no registration. Of those a client has one at a time under way in each session; if
  all its sessions hand in more than there is room for, what its sessions have not repeated for
  longest gives way, and is handed in again if its session still lives.

Nothing here is needed for safety: a batch that was not taken is as one that has not arrived.
"""

from dataclasses import dataclass

from quorate.core.ids import NodeId, member_of
from quorate.protocol.control.state import PUBLISHERS_PER_MEMBER_MAX

# What a batch takes beside its payload, and a line beside its batches: about what Python needs.
# An event is charged too, announced or not: every event takes an offset for good.
BATCH_COST = 1024
LINE_COST = 4096
EVENT_COST = 4


@dataclass(frozen=True, slots=True)
class Rooms:
    """How many bytes may be undecided. Narrower in simulations, where short runs shall fill them.

    What a source has under way, with one batch that goes beyond and its line, fits into the room
    of a session.
    """

    in_flight: int = 16 * 1024 * 1024
    session: int = 32 * 1024 * 1024
    member: int = PUBLISHERS_PER_MEMBER_MAX * 32 * 1024 * 1024
    # Of a member's commands, in all its sessions.
    commands: int = 32 * 1024 * 1024

    @staticmethod
    def of(session: int) -> "Rooms":
        return Rooms(session // 2, session, PUBLISHERS_PER_MEMBER_MAX * session, 2 * session)


ROOMS = Rooms()


class Room:
    """What the sessions of all members hold of some room."""

    __slots__ = ("_member_max", "_members", "_session_max", "_sessions")

    def __init__(self, session_max: int, member_max: int) -> None:
        self._session_max, self._member_max = session_max, member_max
        self._sessions: dict[NodeId, int] = {}
        self._members: dict[NodeId, int] = {}

    def left(self, session: NodeId) -> int:
        """How much more this session may hold."""
        member = self._members.get(member_of(session), 0)
        return min(self._session_max - self._sessions.get(session, 0), self._member_max - member)

    def is_short(self, session: NodeId, size: int) -> bool:
        """Whether others of its member keep this session from holding so much more."""
        left_of_own = self._session_max - self._sessions.get(session, 0)
        return self.left(session) < min(size, left_of_own)

    def change(self, session: NodeId, size: int) -> None:
        """It holds so much more, or less."""
        for held, node in ((self._sessions, session), (self._members, member_of(session))):
            now = held.get(node, 0) + size
            if now > 0:
                held[node] = now
            else:
                held.pop(node, None)
