"""What messages of hosts amount to, counted by hand."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from quorate.pipeline.data.hosts import HEARTBEATS, Message, Recording

HEADERS: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
TIME: Final = pa.timestamp("us", tz="UTC")

# The beginning of a window, and by what is counted: "broker", say, and its name.
Place = tuple[int, str, str]


def rates_by_hand(
    messages: Iterable[Message], window_us: int
) -> tuple[Counter[Place], Counter[Place]]:
    """How many messages and bytes there were in each window, of all and of each kind."""
    counts, sizes = Counter[Place](), Counter[Place]()
    for message in messages:
        is_heartbeat = message.topic == HEARTBEATS
        for by, name in {
            "all": "all",
            "topic": message.topic,
            "broker": broker_of(message),
            "host": host_of(message),
            "signature": "HEARTBEAT" if is_heartbeat else message.signature or "UNKNOWN",
        }.items():
            place = (message.arrives_us - message.arrives_us % window_us, by, name)
            counts[place] += 1
            sizes[place] += len(message.value)
    return counts, sizes


def returns(recording: Recording, limit_us: int) -> set[str]:
    """The hosts that are silent for longer than this, and come back."""
    return {
        name
        for name in recording.silences(limit_us)
        if (outage := recording.by_name[name].outage) is not None and outage.until_us is not None
    }


def table_of(recording: Recording) -> pa.Table:
    """All messages, with the columns of events as far as they have them, and `arrives`."""
    rows = recording.messages
    headers = [[{"name": name, "value": value} for name, value in row.headers] for row in rows]
    columns = {
        "key": pa.array([row.key for row in rows], pa.binary()),
        "value": pa.array([row.value for row in rows], pa.binary()),
        "headers": pa.array(headers, HEADERS),
        "timestamp": pa.array([row.timestamp_us for row in rows], TIME),
        "topic": pa.array([row.topic for row in rows], pa.string()),
        "producer": pa.array([row.party for row in rows], pa.string()),
        "arrives": pa.array([row.arrives_us for row in rows], TIME),
    }
    return pa.table(columns)


def host_of(message: Message) -> str:
    """As the monitor calls it."""
    return f"{message.party}/{message.key.decode()}"


def broker_of(message: Message) -> str:
    return dict(message.headers)["broker"].decode()
