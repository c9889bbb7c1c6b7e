"""What the control plane's replicas keep, as one value.

Source: FIT-Broker 2013, section 4.4.4: the state of ordered channels is the channels themselves
and their registered clients, and a replica that was away receives it whole; DESIGN section 3.
Groups, members, epochs and committed offsets are called as in Kafka.

A state is made of what the commands said, in the order in which they said it, and of nothing
else: two replicas that applied the same commands encode it to the same bytes. So it can be signed
over, sent to a replica that was away, and gone on from. Whatever can be computed (a cluster that
has been checked, who publishes where) is not in it.

Everything in it has a bound, below. What is bounded per member of the cluster is bounded in all.
"""

from typing import Any

import msgspec

from quorate.core.cluster import Client, Cluster, Former, Replica
from quorate.core.control import KEEP_US, AddReplica
from quorate.core.ids import MemberId, NodeId, TopicId

TOPICS_MAX = 4096
# With those that were removed, when another is added; a founding file may have more.
CLIENTS_MAX = 256
# Those that rest are among them, and give way to others of their client.
SESSIONS_PER_MEMBER_MAX = 128
# So long a session rests at most.
REST_US = 7 * 24 * 3_600_000_000
ENDED_PER_MEMBER_MAX = 512
# Of all its sessions: a session has one stream for each partition of a topic that it publishes on.
STREAMS_PER_MEMBER_MAX = 4096
REGISTRATIONS_PER_MEMBER_MAX = 256
# Of these, so many that publish: each has room for what is undecided, at every replica.
PUBLISHERS_PER_MEMBER_MAX = 64
GROUPS_PER_SESSION_MAX = 64
# Of the groups that a party owns, and of all their topics and partitions. Topics
# whose partitions grow later may take a party beyond it.
GROUPS_PER_PARTY_MAX = 64
PARTITIONS_PER_PARTY_MAX = 4096
TOPICS_PER_PARTY_MAX = 256
METADATA_BYTES_PER_PARTY_MAX = 64 * 1024
MEMBERS_PER_GROUP_MAX = 256
TOPICS_PER_MEMBER_MAX = 64
# Of the topics that all members of a client read, in all groups.
SHARES_PER_CLIENT_MAX = 128
PROPOSALS_PER_PARTY_MAX = 16
SENTENCE_CHARACTERS_MAX = 512


class Session(msgspec.Struct):
    """One client process, what it holds, and until when."""

    lease_us: int
    expires_us: int
    # The topics that it publishes on, and the groups that it is in.
    topics: list[str] = []
    groups: list[str] = []
    # Its last command, and what came of it.
    sequence: int = 0
    sentence: str = ""
    # Of each topic that it has published on, how many streams it may have begun.
    streams: dict[TopicId, int] = {}


class Resting(msgspec.Struct, array_like=True):
    """A session whose lease has ended, and that may go on: what it published is remembered."""

    since_us: int
    streams: dict[TopicId, int] = {}


class Place(msgspec.Struct, array_like=True):
    """One partition, as a group sees it.

    `holder` may read it now, `owner` shall. They differ while a partition is handed over, and
    `asked` is then the epoch in which the holder first had to do without it.
    """

    holder: NodeId | None = None
    owner: NodeId | None = None
    asked: int = 0
    offset: int | None = None
    # What came with the commit: the epoch of the leader, or -1, and what the program added.
    leader_epoch: int = -1
    metadata: str = ""


class GroupMember(msgspec.Struct, array_like=True):
    """`revision` changes with every change of what this member may read."""

    topics: list[str]
    revision: int = 0


class Group(msgspec.Struct):
    """Clients that share the partitions of some topics, and how far they are."""

    epoch: int = 0
    # Clients of other parties that may be in it.
    access: list[str] = []
    # How long it keeps its offsets without members, and whether it reads basic batches, once its
    # members said so.
    keep_us: int = KEEP_US
    mode: str = ""
    # Of its members' revisions, the last one.
    revision: int = 0
    used_us: int = 0
    # How many of its partitions are being handed over.
    moving: int = 0
    # In the order in which they joined.
    members: dict[NodeId, GroupMember] = {}
    places: dict[str, list[Place]] = {}


class Proposal(msgspec.Struct, array_like=True):
    """A party asks for one more replica."""

    party: str
    request: AddReplica


class ControlState(msgspec.Struct):
    """All that the commands so far amount to."""

    # Of the topology: it changes with every change of topics, replicas or clients.
    revision: int = 0
    # The time of the last slot: it never goes back.
    time_us: int = 0
    # What `Contract.table` says of each topic, and over how many replicas it was placed.
    topics: dict[str, dict[str, Any]] = {}
    placed_over: dict[str, int] = {}
    replicas: list[Replica] = []
    clients: list[Client] = []
    formers: list[Former] = []
    sessions: dict[NodeId, Session] = {}
    # The one that has rested for longest first.
    resting: dict[NodeId, Resting] = {}
    # Of each client the numbers of its last sessions that ended for good.
    ended: dict[MemberId, list[int]] = {}
    groups: dict[str, Group] = {}
    # The cluster file that all of this began with.
    founding: str = ""
    # Requests for replicas that too few parties have asked for, the oldest first.
    proposals: list[Proposal] = []

    @staticmethod
    def genesis(cluster: Cluster) -> "ControlState":
        """What the cluster file says, before the first command."""
        n = len(cluster.replicas)
        return ControlState(
            topics={name: contract.table() for name, contract in cluster.topics.items()},
            placed_over={name: cluster.placed_over.get(name, n) for name in cluster.topics},
            replicas=list(cluster.replicas),
            clients=list(cluster.clients),
            formers=list(cluster.formers),
            founding=cluster.shared().render(),
        )
