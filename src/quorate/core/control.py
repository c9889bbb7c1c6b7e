"""The control plane's language: commands that are put in order, and what is said about them.

The cluster's own state (topics and their contracts, who may do what, registrations, consumer
groups and their offsets, replicas, clients) changes by commands only. A command is an event of a
log topic that every cluster has, so that all replicas carry out the same commands in the same
order, and anybody may read the log and see who changed what. Commands are JSON for that reason.

Source: FIT-Broker 2013, section 4.4.4 (registrations are ordered like events); DESIGN section 3.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from quorate.core.contract import Contract, check_topic_name
from quorate.core.errors import RefusedError, RemoteProtocolError
from quorate.core.ids import SESSION_MAX, topic_id

# Names that begin so are the cluster's own.
RESERVED_PREFIX = "quorate."
CONTROL_TOPIC = "quorate.control"
CONTROL_TOPIC_ID = topic_id(CONTROL_TOPIC)
# A commit with metadata of `METADATA_BYTES_MAX` fits, also where JSON escapes every character once.
COMMAND_BYTES_MAX = 12 * 1024
# A client that holds something must say so again within this time.
LEASE_US = 10_000_000
LEASE_US_MIN = 500_000
LEASE_US_MAX = 60_000_000

# A group without members keeps its offsets for so long, by the time of the control log.
KEEP_US = 7 * 24 * 3_600_000_000
KEEP_US_MAX = 366 * 24 * 3_600_000_000

NAMES_MAX = 256
OFFSETS_MAX = 256
# What a commit says of a partition beside its offset, in UTF-8.
METADATA_BYTES_MAX = 4096
# The clients on a group's access list.
ACCESS_MAX = 8

_Text = Annotated[str, Meta(max_length=256)]
_Names = Annotated[list[_Text], Meta(max_length=NAMES_MAX)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
# Of the client that gives the command; 0 is the one that gives it.
_Session = Annotated[int, Meta(ge=0, le=SESSION_MAX)]
_Port = Annotated[int, Meta(ge=1, le=65535)]
# What a contract may hold, and nothing nested: how deep a JSON text may be before a decoder gives
# up differs from replica to replica, and their answers must not.
# How the members of a consumer group read topics that can be validated.
GroupMode: TypeAlias = Literal["", "basic", "validated"]
Setting: TypeAlias = (
    bool | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | str | list[str] | None
)
_Offsets = Annotated[list[tuple[_Text, _Number, _Number]], Meta(max_length=OFFSETS_MAX)]
_Group = Annotated[str, Meta(max_length=512)]
_Notes = Annotated[
    list[tuple[Annotated[int, Meta(ge=-1, le=2**31 - 1)], str]], Meta(max_length=OFFSETS_MAX)
]


class _Command(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A key that one replica knows and another does not would let them disagree."""


class CreateTopic(_Command, frozen=True, tag="create-topic"):
    """An operator: let there be this topic. `contract` is what a cluster file would say of it."""

    topic: _Text
    contract: dict[str, Setting]


class AlterTopic(_Command, frozen=True, tag="alter-topic"):
    """An operator: from now on these keys of the topic's contract are different.

    A key that is null is as if it was left out: its default holds.
    """

    topic: _Text
    changes: dict[str, Setting]


class Register(_Command, frozen=True, tag="register"):
    """A client: I publish on this log topic, until I say otherwise or my lease ends.

    With a `session`, that one of its client does. A session that goes on where a former one was
    gives no commands itself: nobody knows which number its next one has (`client/resuming.py`).
    """

    topic: _Text
    lease_us: _Number = LEASE_US
    session: _Session = 0


class Unregister(_Command, frozen=True, tag="unregister"):
    topic: _Text
    session: _Session = 0


class Join(_Command, frozen=True, tag="join"):
    """A client: give me my share of these log topics' partitions, as one of this group.

    A group that this makes keeps its offsets for `keep_us` when nobody is in it. Its first member
    with a `mode` fixes that of the group.
    """

    group: _Group
    topics: _Names
    lease_us: _Number = LEASE_US
    keep_us: _Number = KEEP_US
    mode: GroupMode = ""


class Leave(_Command, frozen=True, tag="leave"):
    group: _Group


class Commit(_Command, frozen=True, tag="commit"):
    """A member of a group: we are through with what stands before these offsets.

    It also says that the member holds no more than what it was assigned in this `epoch`: what it
    gave up goes to its new owners with this command.
    """

    group: _Group
    epoch: _Number
    # Topic, partition, and the offset to go on with.
    offsets: _Offsets = []
    # For each of these the epoch of its leader, or -1, and metadata; or nothing.
    notes: _Notes = []


class AlterGroup(_Command, frozen=True, tag="alter-group"):
    """The owner of a group: these clients of other parties may be in it, and no others."""

    group: _Group
    access: Annotated[list[_Text], Meta(max_length=ACCESS_MAX)]


class ResetGroup(_Command, frozen=True, tag="reset-group"):
    """The owner of a group without members: it goes on with these offsets, and has read no other
    partition. Its next member chooses its mode."""

    group: _Group
    offsets: _Offsets = []


class DeleteGroup(_Command, frozen=True, tag="delete-group"):
    """The owner of a group without members: forget it."""

    group: _Group


class Renew(_Command, frozen=True, tag="renew"):
    """A client: I am still here."""

    session: _Session = 0


class ReplaceReplica(_Command, frozen=True, tag="replace-replica"):
    """An operator of its party: this replica has these keys, or this address, from now on."""

    name: _Text
    host: _Text
    port: _Port
    sign_key: bytes
    mac_key: bytes
    certificate: Annotated[str, Meta(max_length=2048)]
    metrics_port: _Port | None = None


class AddReplica(_Command, frozen=True, tag="add-replica"):
    """An operator: let there be one more replica. Enough parties must ask for the same."""

    name: _Text
    party: _Text
    host: _Text
    port: _Port
    sign_key: bytes
    mac_key: bytes
    certificate: Annotated[str, Meta(max_length=2048)]
    metrics_port: _Port | None = None


class PutClient(_Command, frozen=True, tag="put-client"):
    """An operator of its party: let there be this client, or let it have these keys and rights."""

    name: _Text
    party: _Text
    sign_key: bytes
    mac_key: bytes
    certificate: Annotated[str, Meta(max_length=2048)]
    operator: bool = False


class RemoveClient(_Command, frozen=True, tag="remove-client"):
    """An operator of its party: this client is none any more."""

    name: _Text


Command: TypeAlias = (
    CreateTopic
    | AlterTopic
    | Register
    | Unregister
    | Join
    | Leave
    | Commit
    | AlterGroup
    | ResetGroup
    | DeleteGroup
    | Renew
    | ReplaceReplica
    | AddReplica
    | PutClient
    | RemoveClient
)

# Of commands that are kept for readers, at each replica.
_RETENTION_BYTES = 256 * 1024 * 1024


def control_contract(n: int, f: int) -> Contract | None:
    """What a cluster of n replicas promises about its own commands: the most that it can.

    One with too few replicas to agree on an order has no control plane.
    """
    if n < 2 * f + 1:
        return None
    table = {
        "protection": "byzantine" if n >= 3 * f + 1 else "crash",
        "order": "total",
        "retention_bytes": _RETENTION_BYTES,
    }
    return Contract.parse(CONTROL_TOPIC, table)


def full_name(party: str, group: str) -> str:
    """What a group is called everywhere; a short name means one of the party's own."""
    return group if "/" in group else f"{party}/{group}"


def owner_of(group: str) -> str:
    """The party that a group belongs to."""
    party, slash, name = group.partition("/")
    if not slash:
        check_topic_name("group", group)
        raise RefusedError(f"group '{group}' is of no party; the name of a group is PARTY/NAME")
    check_topic_name("party", party)
    check_topic_name("group", name)
    return party


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)


def encode_command(command: Command) -> bytes:
    return _ENCODER.encode(command)


def decode_command(data: bytes) -> Command:
    """The command in these bytes, within its bounds."""
    if len(data) > COMMAND_BYTES_MAX:
        raise RemoteProtocolError(
            f"a command of {len(data)} bytes; allowed are {COMMAND_BYTES_MAX}"
        )
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        # Of text that is no UTF-8 the decoder complains in another way than of all else.
        raise RemoteProtocolError(f"not a command: {error}") from None
