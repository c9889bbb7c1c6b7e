"""What messages of hosts amount to, counted by hand."""

from collections import Counter
from collections.abc import Iterable

from quorate.pipeline.data.hosts import HEARTBEATS, Message

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


def host_of(message: Message) -> str:
    """As the monitor calls it."""
    return f"{message.party}/{message.key.decode()}"


def broker_of(message: Message) -> str:
    return dict(message.headers)["broker"].decode()
