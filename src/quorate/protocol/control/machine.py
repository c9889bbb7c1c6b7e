"""The control plane's replicated state machine.

Source: FIT-Broker 2013, section 4.4.4 (registrations are part of the ordered state); DESIGN
section 3 (the cluster's own state is in the order log); Schneider 1990 for state machines.
Fault model: that of the control log, which gives all correct replicas the same commands in the
same order and at the same times, each of them once. A command may come from anybody and say
anything.

Rules:
- Only clients of the cluster command. Topics, replicas and clients are for operators (`topology`),
  registrations and groups (`groups`) for those on a topic's lists.
- The time is that of the log, and never goes back. A lease ends when it says so by that time.
  Whatever has ended is dropped before the next command takes effect, whoever that is from: its
  registrations are gone and its groups are shared out anew.
- A session whose lease has ended rests, and goes on with its next command. It ends for good when it
  has rested for too long, or another session of its client needs its place: the session that has
  rested for longest goes first, before that one that holds nothing, and never one that holds
  something. The number of a session that ended for good is not used again.
- Every command of a session renews it, even one that is refused, so `renew` does nothing else. A
  lease never gets shorter than it was granted; a session that holds nothing was granted none.
- A command is carried out whole or not at all, and is answered with a sentence, an empty one if it
  was carried out. The last answer is kept with the session, for a client that missed it.

Invariants:
- state, sentences and changes follow from the genesis and the commands alone. A machine that is
  made from a state goes on like the one that it was taken from;
- the cluster is always one that `Cluster` accepts, and its revision tells any two apart;
- no command makes the state grow beyond the bounds of `state`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from quorate.core.cluster import Client, Cluster, Member
from quorate.core.contract import EVERYONE, Contract, not_listed
from quorate.core.control import (
    LEASE_US,
    LEASE_US_MAX,
    LEASE_US_MIN,
    AddReplica,
    AlterGroup,
    AlterTopic,
    Command,
    Commit,
    CreateTopic,
    DeleteGroup,
    Join,
    Leave,
    PutClient,
    Register,
    RemoveClient,
    Renew,
    ReplaceReplica,
    ResetGroup,
    Unregister,
    decode_command,
    owner_of,
)
from quorate.core.errors import QuorateError, RefusedError, RemoteProtocolError
from quorate.core.ids import MemberId, NodeId, member_of, node_of, session_of, topic_id
from quorate.protocol.control import topology
from quorate.protocol.control.groups import Groups, places_of
from quorate.protocol.control.state import (
    ENDED_PER_MEMBER_MAX,
    GROUPS_PER_SESSION_MAX,
    PROPOSALS_PER_PARTY_MAX,
    PUBLISHERS_PER_MEMBER_MAX,
    REGISTRATIONS_PER_MEMBER_MAX,
    REST_US,
    SENTENCE_CHARACTERS_MAX,
    SESSIONS_PER_MEMBER_MAX,
    SHARES_PER_CLIENT_MAX,
    STREAMS_PER_MEMBER_MAX,
    ControlState,
    Proposal,
    Resting,
    Session,
)

# How the answer begins to a request that is right, but waits for others to ask for the same.
NOT_YET = "not yet: "
# So many times to look at sessions that do not count any more are kept, beside as many as count.
ENDS_SPARE = 64


class Changes(NamedTuple):
    """What others have to know. Of each group, the members to tell, in a fixed order.

    A member that has no assignment any more is among them if it did not leave by itself.
    """

    topology_changed: bool
    groups: dict[str, list[NodeId]]
    # Sessions that ended for good.
    ended: list[NodeId]


class PartitionDescription(msgspec.Struct, frozen=True):
    """`holder` and `owner` are names, empty if there is none; they differ in a handover."""

    topic: str
    partition: int
    holder: str
    owner: str
    offset: int | None
    leader_epoch: int = -1
    metadata: str = ""


class MemberDescription(msgspec.Struct, frozen=True):
    name: str
    node: NodeId
    topics: list[str]
    # How many partitions it may read at this moment.
    partitions: int


class GroupDescription(msgspec.Struct, frozen=True):
    """A group, for people."""

    name: str
    epoch: int
    members: list[MemberDescription]
    partitions: list[PartitionDescription]
    access: list[str] = []
    mode: str = ""
    used_us: int = 0
    keep_us: int = 0


class Control:
    """Applies the commands of the control log, one after the other.

    `check_member` may refuse a member for what this package knows nothing of: whether its
    certificate belongs to its keys. It has to say the same on every replica.
    """

    def __init__(
        self,
        genesis: Cluster,
        state: ControlState | None = None,
        *,
        check_member: Callable[[Member], object] | None = None,
    ) -> None:
        self.genesis = genesis
        self.state = ControlState.genesis(genesis) if state is None else state
        self.cluster = genesis if state is None else _cluster_of(genesis, state)
        self._check_member = check_member
        self.groups = Groups(self.state, self.cluster.topics)
        self._topology_changed = False
        # What follows from the sessions, to have it at hand.
        self._publishers: dict[str, set[NodeId]] = {}
        self._sessions: defaultdict[MemberId, dict[NodeId, None]] = defaultdict(dict)
        # Those of them that publish.
        self._publishing: Counter[MemberId] = Counter()
        self._resting: defaultdict[MemberId, dict[NodeId, None]] = defaultdict(dict)
        for node in self.state.resting:
            self._resting[member_of(node)][node] = None
        self._ended: list[NodeId] = []
        self._over = {
            node_of(member, number)
            for member, numbers in self.state.ended.items()
            for number in numbers
        }
        self._ends: list[tuple[int, NodeId]] = []
        # Of these, the one of each session that counts.
        self._looked_at: dict[NodeId, int] = {}
        for node, session in self.state.sessions.items():
            self._sessions[member_of(node)][node] = None
            self._publishing[member_of(node)] += bool(session.topics)
            self._look_at(node, session.expires_us)
            for topic in session.topics:
                self._publishers.setdefault(topic, set()).add(node)

    def from_state(self, state: ControlState) -> "Control":
        """A machine of the same cluster that goes on from there."""
        return Control(self.genesis, state, check_member=self._check_member)

    # Commands

    def apply(self, node: NodeId, sequence: int, value: bytes, time_us: int) -> str:
        """Carry a command out. The sentence is empty, or says why nothing changed."""
        self.state.time_us = max(self.state.time_us, time_us)
        self._drop_ended()
        client = self._client(node)
        if client is None:
            return f"{self.cluster.name_of(node)} is no client of this cluster"
        try:
            session = self._session(node, client)
        except RefusedError as error:
            # Nothing is remembered of this session: what it says next would be its first command.
            if not self.has_ended(node):
                self._end(node)
            return str(error)
        sentence = self._carry_out(node, client, session, value)[:SENTENCE_CHARACTERS_MAX]
        session.sequence, session.sentence = sequence, sentence
        session.expires_us = max(session.expires_us, self.state.time_us + session.lease_us)
        return sentence

    def result(self, node: NodeId, sequence: int) -> str | None:
        """What came of this command, if it is the last of its session."""
        session = self.state.sessions.get(node)
        return None if session is None or session.sequence != sequence else session.sentence

    def take_changes(self) -> Changes:
        """What changed since the last call."""
        groups = {name: list(nodes) for name, nodes in self.groups.changed.items()}
        changes = Changes(self._topology_changed, groups, self._ended)
        self._topology_changed, self.groups.changed, self._ended = False, {}, []
        return changes

    # What is known

    def may_publish(self, node: NodeId, topic: str) -> bool:
        """Whether this session is registered on this log topic, as of the last command."""
        return node in self._publishers.get(topic, ())

    def has_ended(self, node: NodeId) -> bool:
        """Whether this session ended for good, as of the last command."""
        return node in self._over

    @property
    def ended(self) -> list[NodeId]:
        return sorted(self._over)

    def is_known(self, node: NodeId) -> bool:
        return node in self.state.sessions or node in self.state.resting

    def describe_group(self, group: str) -> GroupDescription | None:
        found = self.state.groups.get(group)
        if found is None:
            return None
        name, places = self._name, list(places_of(found))
        readable = Counter(place.holder for _, _, place in places if place.holder == place.owner)
        members = [
            MemberDescription(self.cluster.name_of(node), node, list(member.topics), readable[node])
            for node, member in found.members.items()
        ]
        partitions = [
            PartitionDescription(
                topic, number, name(p.holder), name(p.owner), p.offset, p.leader_epoch, p.metadata
            )
            for topic, number, p in places
        ]
        return GroupDescription(
            group, found.epoch, members, partitions, list(found.access), found.mode, found.used_us,
            found.keep_us,
        )  # fmt: skip

    # Sessions

    def _client(self, node: NodeId) -> Client | None:
        try:
            member = self.cluster.member(member_of(node))
        except QuorateError:
            return None
        return member if isinstance(member, Client) else None

    def _session(self, node: NodeId, client: Client) -> Session:
        """The session of this node, or a new one."""
        if self.has_ended(node):
            raise RefusedError(
                f"session {session_of(node)} of {client.name} has ended, and its number is not "
                f"used again; begin a new session"
            )
        session = self.state.sessions.get(node)
        if session is None:
            member, resting = member_of(node), self.state.resting.pop(node, None)
            if resting is None:
                self._make_room(member, client)
            self._resting[member].pop(node, None)
            # Its first command, which it is made for, decides how long it lasts.
            session = Session(LEASE_US, self.state.time_us)
            session.streams = {} if resting is None else resting.streams
            self.state.sessions[node] = session
            self._sessions[member][node] = None
            self._look_at(node, session.expires_us)
        return session

    def _make_room(self, member: MemberId, client: Client) -> None:
        """For one more session: those that published are remembered for longer than others."""
        living, resting = self._sessions[member], self._resting[member]
        if len(living) + len(resting) < SESSIONS_PER_MEMBER_MAX:
            return
        idle = (node for node in resting if not self.state.resting[node].streams)
        free = (node for node in living if not self._holds(node))
        given = next(idle, None) or next(free, None) or next(iter(resting), None)
        if given is None:
            raise RefusedError(
                f"{client.name} has {SESSIONS_PER_MEMBER_MAX} sessions already; one of them has "
                f"to end before another can begin"
            )
        self._end(given)

    def _holds(self, node: NodeId) -> bool:
        session = self.state.sessions[node]
        return bool(session.topics or session.groups or session.streams)

    def _end(self, node: NodeId) -> None:
        """This session ends for good."""
        member = member_of(node)
        if self.state.sessions.pop(node, None) is not None:
            del self._sessions[member][node], self._looked_at[node]
        self.state.resting.pop(node, None)
        self._resting[member].pop(node, None)
        numbers = self.state.ended.setdefault(member, [])
        numbers.append(session_of(node))
        self._over.add(node)
        for number in numbers[:-ENDED_PER_MEMBER_MAX]:
            self._over.discard(node_of(member, number))
        del numbers[:-ENDED_PER_MEMBER_MAX]
        self._ended.append(node)

    def _look_at(self, node: NodeId, at_us: int) -> None:
        """At this time, which is no later than its end, and at no other."""
        self._looked_at[node] = at_us
        heappush(self._ends, (at_us, node))
        if len(self._ends) > 2 * len(self._looked_at) + ENDS_SPARE:
            self._ends = [(at_us, node) for node, at_us in self._looked_at.items()]
            heapify(self._ends)

    def _begin_lease(self, node: NodeId, session: Session) -> None:
        """What is granted to a session that holds nothing is granted for as long as it asks now.

        Before, it was there only to remember an answer: so it is after a lease has ended.
        """
        if not session.topics and not session.groups:
            session.expires_us = self.state.time_us
            self._look_at(node, session.expires_us)

    def _drop_ended(self) -> None:
        now_us = self.state.time_us
        ended: list[tuple[int, NodeId]] = []
        while self._ends and self._ends[0][0] <= now_us:
            at_us, node = heappop(self._ends)
            if self._looked_at.get(node) != at_us:
                continue
            expires_us = self.state.sessions[node].expires_us
            if expires_us > now_us:
                self._look_at(node, expires_us)
            else:
                del self._looked_at[node]
                ended.append((expires_us, node))
        groups: dict[str, list[NodeId]] = {}
        # In an order that does not depend on when each was looked at.
        for _, node in sorted(ended):
            session = self.state.sessions.pop(node)
            del self._sessions[member_of(node)][node]
            self.state.resting[node] = Resting(session.expires_us, session.streams)
            self._resting[member_of(node)][node] = None
            self._publishing[member_of(node)] -= bool(session.topics)
            for topic in session.topics:
                self._publishers[topic].discard(node)
            for group in session.groups:
                groups.setdefault(group, []).append(node)
        self.groups.end(groups)
        for node in list(self.state.resting):
            if now_us - self.state.resting[node].since_us < REST_US:
                break
            self._end(node)

    # One method for each command. A refusal is raised before anything has changed.

    def _carry_out(self, node: NodeId, client: Client, session: Session, value: bytes) -> str:
        try:
            command = decode_command(value)
        except RemoteProtocolError:
            # What exactly is wrong with it may be said differently by another release.
            return "this is not a command of the control plane, or exceeds what one may hold"
        try:
            return self._dispatch(node, client, session, command)
        except QuorateError as error:
            return str(error)

    def _dispatch(self, node: NodeId, client: Client, session: Session, command: Command) -> str:
        if isinstance(command, Register | Unregister | Renew) and command.session:
            self._dispatch_for(node_of(member_of(node), command.session), client, command)
            return ""
        match command:
            case Register():
                self._register(node, client, session, command)
            case Unregister():
                self._unregister(node, session, command.topic)
            case Join():
                self._join(node, client, session, command)
            case Leave():
                self._leave(node, session, command.group)
            case Commit():
                for topic, _, _ in command.offsets:
                    if topic not in self.cluster.topics:
                        topology.known_topic(self.cluster, topic)
                self.groups.commit(command, node, client.name)
            case Renew():
                self._renew(client, session)
            case _:
                return self._operate(client, command)
        return ""

    def _dispatch_for(
        self, node: NodeId, client: Client, command: Register | Unregister | Renew
    ) -> None:
        """The same for another session of the client, which is there from now on."""
        session = self._session(node, client)
        try:
            self._dispatch(node, client, session, msgspec.structs.replace(command, session=0))
        finally:
            session.expires_us = max(session.expires_us, self.state.time_us + session.lease_us)

    def _operate(self, client: Client, command: Command) -> str:
        """What takes an operator."""
        if isinstance(command, AlterGroup | ResetGroup | DeleteGroup):
            self._own(client, command)
            return ""
        if not client.operator:
            raise RefusedError(
                f"{client.name} is not an operator, and only operators change topics, replicas "
                f"and clients"
            )
        match command:
            case CreateTopic():
                self._adopt(topology.create_topic(self.cluster, command))
            case AlterTopic():
                self._alter(command)
            case ReplaceReplica():
                self._adopt(topology.replace_replica(self.cluster, command, client))
            case AddReplica():
                return self._add_replica(client, command)
            case PutClient():
                made = topology.put_client(self.cluster, command, client)
                self._check(made.named(command.name))
                self._adopt(made)
            case RemoveClient():
                self._adopt(topology.remove_client(self.cluster, command, client))
        return ""

    def _register(self, node: NodeId, client: Client, session: Session, command: Register) -> None:
        name = command.topic
        contract = topology.known_log(self.cluster, name)
        _check_lease(command.lease_us)
        if not _listed(client, contract.publish):
            raise RefusedError(not_listed(client.name, "publish on", name, contract.publish))
        publishers = self._publishers.setdefault(name, set())
        if node not in publishers:
            if len(publishers) >= contract.publishers_max:
                raise RefusedError(
                    f"topic '{name}' already has its {contract.publishers_max} publishers"
                )
            sessions = [self.state.sessions[each] for each in self._sessions[member_of(node)]]
            if sum(len(each.topics) for each in sessions) >= REGISTRATIONS_PER_MEMBER_MAX:
                raise RefusedError(
                    f"the sessions of {client.name} publish on {REGISTRATIONS_PER_MEMBER_MAX} "
                    f"topics already, each topic counted for every session"
                )
            self._charge_streams(client, session, name, contract.partitions)
            if not session.topics:
                # What replicas keep of all that is undecided is bounded for each client, and
                # every session of it that publishes has its part (`ordering/room.py`).
                if self._publishing[member_of(node)] >= PUBLISHERS_PER_MEMBER_MAX:
                    raise RefusedError(
                        f"{client.name} publishes on log topics in {PUBLISHERS_PER_MEMBER_MAX} "
                        f"sessions already; one of them has to end before another can begin"
                    )
                self._publishing[member_of(node)] += 1
            self._begin_lease(node, session)
            publishers.add(node)
            session.topics.append(name)
        session.lease_us = command.lease_us

    def _charge_streams(
        self, client: Client, session: Session, topic: str, partitions: int
    ) -> None:
        """A session may begin streams: room is made by sessions that rest, and by no others."""
        member, key = client.number, topic_id(topic)
        if key in session.streams:
            return
        resting = {node: self.state.resting[node] for node in self._resting[member]}
        living = (self.state.sessions[node] for node in self._sessions[member])
        streams = partitions + sum(sum(each.streams.values()) for each in living)
        if streams > STREAMS_PER_MEMBER_MAX:
            raise RefusedError(
                f"the sessions of {client.name} would have {streams} streams, one for each "
                f"partition of each topic; allowed are {STREAMS_PER_MEMBER_MAX} until one of the "
                f"sessions ends"
            )
        streams += sum(sum(each.streams.values()) for each in resting.values())
        for node, rests in resting.items():
            if streams > STREAMS_PER_MEMBER_MAX and rests.streams:
                streams -= sum(rests.streams.values())
                self._end(node)
        session.streams = {**session.streams, key: partitions}

    def _unregister(self, node: NodeId, session: Session, topic: str) -> None:
        if topic in session.topics:
            session.topics.remove(topic)
            self._publishers[topic].discard(node)
            self._publishing[member_of(node)] -= not session.topics

    def _join(self, node: NodeId, client: Client, session: Session, command: Join) -> None:
        _check_lease(command.lease_us)
        for name in command.topics:
            contract = topology.known_log(self.cluster, name)
            if not _listed(client, contract.subscribe):
                raise RefusedError(
                    not_listed(client.name, "subscribe to", name, contract.subscribe)
                )
        is_new = command.group not in session.groups
        if is_new and len(session.groups) >= GROUPS_PER_SESSION_MAX:
            raise RefusedError(
                f"this session of {client.name} is in {GROUPS_PER_SESSION_MAX} groups already"
            )
        self._check_shares(node, client, command)
        self.groups.join(command, node, client)
        if is_new:
            self._begin_lease(node, session)
            session.groups.append(command.group)
        session.lease_us = command.lease_us

    def _check_shares(self, node: NodeId, client: Client, command: Join) -> None:
        shares = len(set(command.topics))
        for other in self._sessions[member_of(node)]:
            for group in self.state.sessions[other].groups:
                if (other, group) != (node, command.group):
                    shares += len(self.state.groups[group].members[other].topics)
        if shares > SHARES_PER_CLIENT_MAX:
            raise RefusedError(
                f"{client.name} would read {shares} topics in all its groups; allowed are "
                f"{SHARES_PER_CLIENT_MAX}"
            )

    def _own(self, client: Client, command: AlterGroup | ResetGroup | DeleteGroup) -> None:
        """What only the owner of a group may ask for."""
        name, party = command.group, owner_of(command.group)
        if not client.operator or not topology.may_speak_for(self.cluster, client, party):
            raise RefusedError(
                f"group '{name}' is of {party}; only operators of {party} let others in, reset or "
                f"delete it, and {client.name} is none"
            )
        match command:
            case AlterGroup():
                known = {*EVERYONE, *(each.name for each in self.cluster.clients)}
                for other in command.access:
                    if other not in known:
                        raise RefusedError(f"there is no client named '{other}'")
                for node in self.groups.let_in(name, command.access):
                    member = self._client(node)
                    if member is None or (
                        member.party != party and not _listed(member, tuple(command.access))
                    ):
                        self._leave(node, self.state.sessions[node], name)
            case ResetGroup():
                for topic, _, _ in command.offsets:
                    topology.known_log(self.cluster, topic)
                self.groups.reset(command)
            case DeleteGroup():
                self.groups.delete(name)

    def _leave(self, node: NodeId, session: Session, group: str) -> None:
        if group in session.groups:
            session.groups.remove(group)
            self.groups.leave(group, node)

    def _renew(self, client: Client, session: Session) -> None:
        if not session.topics and not session.groups:
            raise RefusedError(
                f"this session of {client.name} holds nothing: its lease has ended, or it gave up "
                f"all it had; register or join again"
            )

    def _alter(self, command: AlterTopic) -> None:
        name = command.topic
        before = self.cluster.topics.get(name)
        self._adopt(topology.alter_topic(self.cluster, command))
        after = self.cluster.topics[name]
        if after == before:
            return
        for node in sorted(self._publishers.get(name, ())):
            if not self._may(node, after.publish):
                self._unregister(node, self.state.sessions[node], name)
        off = [node for node in self.state.sessions if not self._may(node, after.subscribe)]
        for group, node in self.groups.alter(name, off):
            self.state.sessions[node].groups.remove(group)

    def _add_replica(self, client: Client, command: AddReplica) -> str:
        placed_over = self.state.placed_over
        made = topology.add_replica(self.cluster, command, placed_over)
        self._check(made.replicas[-1])
        others = [
            proposal
            for proposal in self.state.proposals
            if (proposal.party, proposal.request.name) != (client.party, command.name)
        ]
        # Who has asked for exactly this, in order.
        asked = [each.party for each in others if each.request == command] + [client.party]
        needed = topology.parties_needed(self.cluster)
        if len(asked) >= needed:
            self.state.proposals = [each for each in others if each.request.name != command.name]
            self._adopt(made)
            return ""
        # A party that asks for too much loses what it asked for first, and nobody else does.
        mine = [proposal for proposal in others if proposal.party == client.party]
        if len(mine) >= PROPOSALS_PER_PARTY_MAX:
            others.remove(mine[0])
        self.state.proposals = [*others, Proposal(client.party, command)]
        return (
            f"{NOT_YET}{len(asked)} of {needed} parties asked for exactly this replica "
            f"'{command.name}' ({', '.join(asked)}); operators of others have to ask for the same"
        )

    def _adopt(self, made: Cluster) -> None:
        """Go on with this cluster, which has been checked."""
        before, state = self.cluster, self.state
        if made == before:
            return
        n = len(made.replicas)
        if made.replicas != before.replicas:
            for number, replica in enumerate(made.replicas):
                if number >= len(before.replicas) or replica != before.replicas[number]:
                    self._check(replica)
            state.replicas = list(made.replicas)
        state.clients, state.formers = list(made.clients), list(made.formers)
        for name, contract in made.topics.items():
            if contract is not before.topics.get(name):
                state.topics[name] = contract.table()
                state.placed_over.setdefault(name, made.placed_over.get(name, n))
        state.revision += 1
        self.cluster = replace(made, revision=state.revision)
        self.groups.contracts = self.cluster.topics
        self._topology_changed = True

    def _check(self, member: Member) -> None:
        if self._check_member is not None:
            self._check_member(member)

    def _may(self, node: NodeId, names: tuple[str, ...]) -> bool:
        client = self._client(node)
        return client is not None and _listed(client, names)

    def _name(self, node: NodeId | None) -> str:
        return "" if node is None else self.cluster.name_of(node)


def _cluster_of(genesis: Cluster, state: ControlState) -> Cluster:
    return replace(
        genesis,
        revision=state.revision,
        replicas=tuple(state.replicas),
        clients=tuple(state.clients),
        formers=tuple(state.formers),
        topics={name: Contract.parse(name, table) for name, table in state.topics.items()},
        placed_over=state.placed_over,
    )


def _listed(client: Client, names: tuple[str, ...]) -> bool:
    return names == EVERYONE or client.name in names


def _check_lease(lease_us: int) -> None:
    if not LEASE_US_MIN <= lease_us <= LEASE_US_MAX:
        raise RefusedError(
            f"a lease of {lease_us} microseconds; allowed are {LEASE_US_MIN} to {LEASE_US_MAX}"
        )
