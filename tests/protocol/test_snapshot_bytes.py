"""The state of all clients at their bounds fits into a snapshot."""

from typing import Any

import msgspec

from quorate.core.contract import NAME_CHARACTERS_MAX
from quorate.core.control import ACCESS_MAX
from quorate.core.ordering import Line
from quorate.protocol.control.state import (
    CLIENTS_MAX,
    ENDED_PER_MEMBER_MAX,
    GROUPS_PER_PARTY_MAX,
    METADATA_BYTES_PER_PARTY_MAX,
    PARTITIONS_PER_PARTY_MAX,
    REGISTRATIONS_PER_MEMBER_MAX,
    SENTENCE_CHARACTERS_MAX,
    SESSIONS_PER_MEMBER_MAX,
    SHARES_PER_CLIENT_MAX,
    STREAMS_PER_MEMBER_MAX,
    TOPICS_PER_PARTY_MAX,
    ControlState,
    Group,
    GroupMember,
    Place,
    Session,
)
from quorate.protocol.ordering.log import (
    COMMAND_LINES_PER_MEMBER_MAX,
    LINES_PER_MEMBER_MAX,
    POSITIONS_PER_MEMBER_MAX,
    LineState,
    LogState,
    Position,
)
from quorate.protocol.ordering.transfer import SNAPSHOT_BYTES_MAX

LARGE = 2**63 - 1
NODE = 2**64 - 1
NAME, PARTY = "n" * NAME_CHARACTERS_MAX, "p" * 63
# What is not of clients: topics, replicas, the founding file, the partitions of logs.
OTHERS_BYTES = 32 * 1024 * 1024


def size(value: Any) -> int:
    return len(msgspec.msgpack.encode(value))


def of_one_client_in_the_log() -> int:
    """All its lines, and as many positions as there may be."""
    count = LINES_PER_MEMBER_MAX + COMMAND_LINES_PER_MEMBER_MAX
    lines = {
        Line(NODE - number, 2**32 - 1, 2**16 - 1): LineState(LARGE, bytes(32))
        for number in range(count)
    }
    positions = [Position(LARGE, 4096, LARGE, LARGE)] * POSITIONS_PER_MEMBER_MAX
    return size(LogState(lines=lines)) + size(positions)


def of_one_client_in_the_control_plane() -> int:
    """Its sessions with all that they hold, and the groups of its party."""
    sessions = {
        NODE - number: Session(LARGE, LARGE, [], [], LARGE, "s" * SENTENCE_CHARACTERS_MAX)
        for number in range(SESSIONS_PER_MEMBER_MAX)
    }
    first = next(iter(sessions.values()))
    first.topics = [NAME] * REGISTRATIONS_PER_MEMBER_MAX
    first.groups = [f"{PARTY}/{NAME}"] * SHARES_PER_CLIENT_MAX
    first.streams = {2**32 - 1 - number: 1 for number in range(STREAMS_PER_MEMBER_MAX)}
    members = {NODE - number: GroupMember([NAME], LARGE) for number in range(SHARES_PER_CLIENT_MAX)}
    groups = {
        f"{number:0>63}/{NAME}": Group(
            LARGE, ["c" * 63] * ACCESS_MAX, LARGE, "validated", LARGE, LARGE, LARGE
        )
        for number in range(GROUPS_PER_PARTY_MAX)
    }
    group = next(iter(groups.values()))
    group.members = members
    group.places = {NAME: [Place(NODE, NODE, LARGE, LARGE, 2**31 - 1)] * PARTITIONS_PER_PARTY_MAX}
    ended = {2**32 - 1: [2**32 - 1] * ENDED_PER_MEMBER_MAX}
    state = ControlState(sessions=sessions, groups=groups, ended=ended)
    # Commits with metadata, and the names of all other topics of groups.
    return size(state) + METADATA_BYTES_PER_PARTY_MAX + size([NAME] * TOPICS_PER_PARTY_MAX)


def test_the_state_of_all_clients_at_their_bounds_fits_into_a_snapshot() -> None:
    log, control = of_one_client_in_the_log(), of_one_client_in_the_control_plane()
    everything = CLIENTS_MAX * (log + control) + OTHERS_BYTES
    assert everything < SNAPSHOT_BYTES_MAX, (log, control, everything / SNAPSHOT_BYTES_MAX)
