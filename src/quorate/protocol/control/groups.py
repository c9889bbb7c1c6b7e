"""Consumer groups: members that share partitions, and offsets that outlive them.

Source: DESIGN section 3; the vocabulary is Kafka's, and the handover that of its cooperative
rebalancing, except that no member is a leader: every replica computes the same assignment.

Rules:
- Any change of members, of their topics or of partition counts begins a new epoch, with a new
  assignment (`balance`). Every partition then has an owner, the member that shall read it, and a
  holder, the member that may.
- A partition without a holder goes to its owner at once. Else it is handed over: the holder is
  told of an epoch in which it has to do without it, and a commit of that epoch or a later one,
  which may carry the last offset, gives it up. So does leaving, or the end of a lease.
- A member commits offsets of what it holds, whatever epoch it knows. Offsets may go back.
- Partitions that a topic gets while a group knows it are read from their beginning.
- A group `PARTY/NAME` belongs to that party. Clients of the party may be in it, and clients of
  other parties that are on its access list. What a group takes is charged to its party, so that no
  party takes room from another.
- A group without members keeps its offsets for as long as its first member asked for, by the time
  of the log, or until an operator of its party deletes or resets it.
- A commit may name any offset, since other logs than the one with the commands say where their ends
  are. Whoever is handed an offset beyond the end begins at the end (`ordering/reading.py`).

Invariants:
- a partition has at most one holder, which is a member, and only its holder commits for it;
- a member is told of those partitions that it both holds and owns, so that no two members read
  one partition at once;
- a new holder begins with the last offset that the one before it could commit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from quorate.core.cluster import Client
from quorate.core.contract import EVERYONE, Contract
from quorate.core.control import (
    KEEP_US,
    KEEP_US_MAX,
    METADATA_BYTES_MAX,
    Commit,
    Join,
    ResetGroup,
    owner_of,
)
from quorate.core.errors import RefusedError
from quorate.core.ids import NodeId
from quorate.core.ordering import Assigned
from quorate.protocol.control.balance import balance
from quorate.protocol.control.state import (
    GROUPS_PER_PARTY_MAX,
    MEMBERS_PER_GROUP_MAX,
    METADATA_BYTES_PER_PARTY_MAX,
    PARTITIONS_PER_PARTY_MAX,
    TOPICS_PER_MEMBER_MAX,
    TOPICS_PER_PARTY_MAX,
    ControlState,
    Group,
    GroupMember,
    Place,
)


class Groups:
    """All groups of a cluster. `changed` has the members to tell, until somebody takes it.

    Whoever carries out commands keeps the time of the state and the `contracts` of topics.
    """

    def __init__(self, state: ControlState, contracts: Mapping[str, Contract]) -> None:
        self.contracts = contracts
        self.changed: dict[str, dict[NodeId, None]] = {}
        self._state, self._groups = state, state.groups
        self._of_party: dict[str, dict[str, None]] = {}
        for name in self._groups:
            self._of_party.setdefault(owner_of(name), {})[name] = None

    # What members ask for. A refusal is raised, and then nothing has changed.

    def join(self, join: Join, node: NodeId, client: Client) -> None:
        name, wanted = join.group, sorted(set(join.topics))
        if not 1 <= len(wanted) <= TOPICS_PER_MEMBER_MAX:
            raise RefusedError(
                f"a member of a group reads {len(wanted)} topics; allowed are 1 to "
                f"{TOPICS_PER_MEMBER_MAX}"
            )
        if not 0 < join.keep_us <= KEEP_US_MAX:
            raise RefusedError(
                f"offsets that are kept for {join.keep_us} microseconds; allowed are 1 to "
                f"{KEEP_US_MAX}"
            )
        group = self._found(name)
        access = () if group is None else tuple(group.access)
        if client.party != owner_of(name) and access != EVERYONE and client.name not in access:
            raise RefusedError(
                f"group '{name}' is of {owner_of(name)}, and {client.name} is of {client.party} "
                f"and not on its access list"
            )
        if group is not None and join.mode and group.mode not in ("", join.mode):
            raise RefusedError(
                f"group '{name}' reads {group.mode} batches, and {client.name} asks for "
                f"{join.mode} ones; join another group, or have the owner reset this one"
            )
        self._check_room(name, node, group, wanted)
        group = self._made(name, group, join.keep_us)
        group.mode = group.mode or join.mode
        group.used_us = self._state.time_us
        member = group.members.get(node)
        if member is not None and member.topics == wanted:
            return
        if member is None:
            group.members[node] = GroupMember(wanted)
        else:
            member.topics = wanted
        self._rebalance(name)

    def leave(self, name: str, node: NodeId) -> None:
        group = self._groups.get(name)
        if group is not None and group.members.pop(node, None) is not None:
            group.used_us = self._state.time_us
            self._rebalance(name)

    def commit(self, commit: Commit, node: NodeId, who: str) -> None:
        name, epoch = commit.group, commit.epoch
        group = self._groups.get(name)
        if group is None or node not in group.members:
            raise RefusedError(
                f"{who} is not in group '{name}': its lease has ended, or it left; join again"
            )
        if epoch > group.epoch:
            raise RefusedError(
                f"group '{name}' is in epoch {group.epoch}, and has not been in {epoch}"
            )
        places: list[Place] = []
        for topic, partition, _ in commit.offsets:
            known = group.places.get(topic, [])
            if partition >= len(known):
                raise RefusedError(
                    f"group '{name}' has no partition {partition} of topic '{topic}'"
                )
            if known[partition].holder != node:
                raise RefusedError(
                    f"{who} does not hold partition {partition} of topic '{topic}' in group "
                    f"'{name}' (it commits in epoch {epoch}, and the group is in {group.epoch})"
                )
            places.append(known[partition])
        self._check_metadata(name, places, commit.notes)
        for place, (_, _, offset), note in zip_longest(places, commit.offsets, commit.notes):
            place.offset = offset
            place.leader_epoch, place.metadata = note or (-1, "")
        group.used_us = self._state.time_us
        if group.moving:
            self._give_up(name, group, node, epoch)

    # What the owner of a group asks for

    def let_in(self, name: str, access: list[str]) -> list[NodeId]:
        """These clients of other parties may be in it. Returns the members that it has."""
        group = self._found(name)
        if group is None:
            self._check_groups(owner_of(name))
        group = self._made(name, group)
        group.access, group.used_us = list(access), self._state.time_us
        return list(group.members)

    def reset(self, reset: ResetGroup) -> None:
        group = self._idle(reset.group)
        places: dict[str, list[Place]] = {}
        for topic, partition, offset in reset.offsets:
            count = self.contracts[topic].partitions
            if partition >= count:
                raise RefusedError(f"topic '{topic}' has no partition {partition}")
            made = places.setdefault(topic, [Place() for _ in range(count)])
            made[partition].offset = offset
        self._check_partitions(reset.group, sum(map(len, places.values())), len(places))
        self._made(reset.group, group)
        group.places, group.mode, group.used_us = places, "", self._state.time_us

    def delete(self, name: str) -> None:
        self._idle(name)
        self._drop(name)

    def of_party(self, party: str) -> list[str]:
        """The groups of this party that have not ended by age."""
        names = self._of_party.get(party, ())
        return [name for name in names if not self._is_old(self._groups[name])]

    # What happens to groups without being asked

    def end(self, ended: Mapping[str, Iterable[NodeId]]) -> None:
        """The leases of these members ended."""
        for name, nodes in ended.items():
            group = self._groups[name]
            for node in nodes:
                del group.members[node]
                self._tell(name, node)
            group.used_us = self._state.time_us
            self._rebalance(name)

    def alter(self, topic: str, off: Iterable[NodeId]) -> list[tuple[str, NodeId]]:
        """The topic has more partitions, perhaps, and these nodes may not read it any more.

        Somebody that may not read has nothing to hand over. Returns who is out of which group,
        for want of other topics.
        """
        gone = set(off)
        out = []
        for name, group in self._groups.items():
            if topic not in group.places:
                continue
            leaving = [node for node in group.members if node in gone]
            leaving = [node for node in leaving if self._take_off(name, group, node, topic)]
            out += [(name, node) for node in leaving if node not in group.members]
            if leaving or len(group.places[topic]) != self.contracts[topic].partitions:
                self._rebalance(name)
        return out

    # What is known of them

    def assignments(self, name: str, nodes: Iterable[NodeId]) -> dict[NodeId, Assigned]:
        """What those of them may read that are members.

        Whoever joins or leaves makes every member's news: its places are gone through once for all.
        """
        group = self._groups.get(name)
        if group is None:
            return {}
        members = {node: group.members[node] for node in nodes if node in group.members}
        found = {
            node: Assigned(name, group.epoch, member.revision, [], [])
            for node, member in members.items()
        }
        for topic, partition, place in places_of(group):
            reader = _reader(place)
            if reader is not None and reader in found:
                offset = -1 if place.offset is None else place.offset
                found[reader].partitions.append((topic, partition, offset))
                if place.metadata or place.leader_epoch >= 0:
                    note = topic, partition, place.leader_epoch, place.metadata
                    found[reader].notes.append(note)
        return found

    # Inside

    def _check_room(
        self, name: str, node: NodeId, group: Group | None, topics: Sequence[str]
    ) -> None:
        if group is None:
            self._check_groups(owner_of(name))
            group = Group()
        if node not in group.members and len(group.members) >= MEMBERS_PER_GROUP_MAX:
            raise RefusedError(f"group '{name}' already has its {MEMBERS_PER_GROUP_MAX} members")
        names = {*topics, *group.places}
        partitions = sum(self.contracts[topic].partitions for topic in names)
        if not names <= set(group.places):
            self._check_partitions(name, partitions, len(names))

    def _check_groups(self, party: str) -> None:
        if len(self.of_party(party)) >= GROUPS_PER_PARTY_MAX:
            raise RefusedError(
                f"{party} has {GROUPS_PER_PARTY_MAX} groups already; an operator of it has to "
                f"delete one"
            )

    def _check_partitions(self, name: str, partitions: int, topics: int) -> None:
        party = owner_of(name)
        for other in self.of_party(party):
            if other != name:
                partitions += sum(map(len, self._groups[other].places.values()))
                topics += len(self._groups[other].places)
        if topics > TOPICS_PER_PARTY_MAX:
            raise RefusedError(
                f"with group '{name}', the groups of {party} would have {topics} topics; allowed "
                f"are {TOPICS_PER_PARTY_MAX}"
            )
        if partitions > PARTITIONS_PER_PARTY_MAX:
            raise RefusedError(
                f"with group '{name}', the groups of {party} would have {partitions} partitions; "
                f"allowed are {PARTITIONS_PER_PARTY_MAX}"
            )

    def _check_metadata(
        self, name: str, places: Sequence[Place], notes: Sequence[tuple[int, str]]
    ) -> None:
        if len(notes) not in (0, len(places)):
            raise RefusedError(f"a commit of {len(places)} offsets with {len(notes)} notes")
        if any(len(metadata.encode()) > METADATA_BYTES_MAX for _, metadata in notes):
            raise RefusedError(f"metadata of a commit has at most {METADATA_BYTES_MAX} bytes")
        if not any(metadata for _, metadata in notes):
            return
        party, replaced = owner_of(name), set(map(id, places))
        size = sum(
            len(place.metadata.encode())
            for other in self.of_party(party)
            for _, _, place in places_of(self._groups[other])
            if id(place) not in replaced
        )
        size += sum(len(metadata.encode()) for _, metadata in notes)
        if size > METADATA_BYTES_PER_PARTY_MAX:
            raise RefusedError(
                f"the commits of the groups of {party} would have {size} bytes of metadata; "
                f"allowed are {METADATA_BYTES_PER_PARTY_MAX}"
            )

    def _found(self, name: str) -> Group | None:
        """One that has not ended by age."""
        group = self._groups.get(name)
        return None if group is None or self._is_old(group) else group

    def _is_old(self, group: Group) -> bool:
        return not group.members and self._state.time_us - group.used_us >= group.keep_us

    def _made(self, name: str, group: Group | None, keep_us: int = KEEP_US) -> Group:
        """The group, which is made if there is none; those of its party that are old go now."""
        named = self._of_party.setdefault(owner_of(name), {})
        for old in [each for each in named if self._is_old(self._groups[each])]:
            self._drop(old)
        if group is None:
            group = self._groups[name] = Group(keep_us=keep_us)
            named[name] = None
        return group

    def _drop(self, name: str) -> None:
        del self._groups[name], self._of_party[owner_of(name)][name]

    def _idle(self, name: str) -> Group:
        """A group without members."""
        group = self._found(name)
        if group is None:
            raise RefusedError(f"there is no group '{name}'")
        if group.members:
            raise RefusedError(
                f"group '{name}' has {len(group.members)} members, which have to leave first"
            )
        return group

    def _give_up(self, name: str, group: Group, node: NodeId, epoch: int) -> None:
        given = [
            place
            for _, _, place in places_of(group)
            if place.holder == node != place.owner and place.asked <= epoch
        ]
        for place in given:
            place.holder, place.asked = place.owner, 0
            group.moving -= 1
            self._revise(name, group, place.owner)
        if given:
            _forget_unused(group)

    def _take_off(self, name: str, group: Group, node: NodeId, topic: str) -> bool:
        """This member reads the topic no more. False if it never did."""
        member = group.members[node]
        is_held = False
        for place in group.places[topic]:
            if place.holder == node:
                self._revise(name, group, _reader(place))
                place.holder = None
                is_held = True
        if not is_held and topic not in member.topics:
            return False
        member.topics = [each for each in member.topics if each != topic]
        if not member.topics:
            del group.members[node]
            self._tell(name, node)
        return True

    def _rebalance(self, name: str) -> None:
        """A new epoch: who shall read what, and who may already."""
        group = self._groups[name]
        group.epoch += 1
        _fit(group, self.contracts)
        readers = [_reader(place) for _, _, place in places_of(group)]
        members = group.members
        for _, _, place in places_of(group):
            if place.holder not in members:
                place.holder = None
        owners = balance(
            {node: member.topics for node, member in members.items()},
            {
                topic: [p.owner if p.owner in members else p.holder for p in places]
                for topic, places in group.places.items()
            },
        )
        for (topic, partition, place), before in zip(places_of(group), readers, strict=True):
            place.owner = owners[topic][partition]
            if place.holder is None:
                place.holder = place.owner
            if place.holder == place.owner:
                place.asked = 0
            elif not place.asked:
                place.asked = group.epoch
            if _reader(place) != before:
                self._revise(name, group, before)
                self._revise(name, group, _reader(place))
        group.moving = sum(place.holder != place.owner for _, _, place in places_of(group))
        _forget_unused(group)
        # All have to know the epoch, since a commit of an older one gives nothing up.
        for node in members:
            self._tell(name, node)

    def _revise(self, name: str, group: Group, node: NodeId | None) -> None:
        """What this member may read is different now."""
        member = None if node is None else group.members.get(node)
        if node is not None and member is not None:
            group.revision += 1
            member.revision = group.revision
            self._tell(name, node)

    def _tell(self, name: str, node: NodeId) -> None:
        self.changed.setdefault(name, {})[node] = None


def places_of(group: Group) -> Iterator[tuple[str, int, Place]]:
    for topic, places in group.places.items():
        for partition, place in enumerate(places):
            yield topic, partition, place


def _reader(place: Place) -> NodeId | None:
    """Who is told to read it: a holder that is to give it up is not."""
    return place.holder if place.holder == place.owner else None


def _fit(group: Group, contracts: Mapping[str, Contract]) -> None:
    """A place for every partition of what members read."""
    topics = {topic for member in group.members.values() for topic in member.topics}
    for topic in sorted(topics | set(group.places)):
        places = group.places.setdefault(topic, [])
        # What came after the group has no events that it could have missed before.
        offset = 0 if places else None
        missing = contracts[topic].partitions - len(places)
        places += [Place(offset=offset) for _ in range(missing)]


def _forget_unused(group: Group) -> None:
    """Nobody reads the topic or has said how far it is."""
    unused = [
        topic
        for topic, places in group.places.items()
        if all(p.holder is None and p.owner is None and p.offset is None for p in places)
    ]
    for topic in unused:
        if not any(topic in member.topics for member in group.members.values()):
            del group.places[topic]
