"""Hard upper bounds on everything that comes from outside.

They are checked before anything is allocated. A correct party never reaches them; whoever
does is refused, and named.
"""

from dataclasses import dataclass

BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCH_EVENTS_MAX = 1_000_000
# With what a validated topic puts in front of a batch (`crypto/sids.py`).
SEALED_BYTES_MAX = BATCH_BYTES_MAX + 1024
FRAME_BYTES_MAX = 16 * 1024 * 1024
CONTROL_BYTES_MAX = 1024 * 1024
RUN_BATCHES_MAX = 4096
AUTHENTICATORS_MAX = 4096

# The `span` of every stream's `Windows`, and the most that one history names.
WINDOW_BATCHES = 4096


# After so many slots of a log, its state is written down and signed as a whole. All replicas of a
# cluster have the same number: they sign the same. Slots are kept for those who were away, and
# whoever was away for longer starts over at a snapshot.
SNAPSHOT_EVERY = 4096
SLOTS_KEPT = 16 * SNAPSHOT_EVERY


@dataclass(frozen=True, slots=True)
class Windows:
    """How far apart the ends of a stream may be, in batches.

    They hang together: what is in flight, and what a subscriber may be behind, lie within what
    sources keep and replicas retain, so that whatever is missing can still be had. They are the
    same everywhere, but narrower in simulations, where short streams shall reach their edges.
    """

    # Replicas and destinations refuse what is further ahead of what they have, and replicas
    # retain so much of each stream.
    span: int
    # A source keeps so many for replicas that lag.
    kept: int
    # A source waits when a subscriber is so far behind. With what is in flight, all that the
    # subscriber may still have to fetch is then within its span, and retained.
    lag: int
    # A replica sends so far ahead of a subscriber, and so many urgent ones that overtake.
    credit: int
    urgent: int
    # Batches without a receipt.
    in_flight: int

    @staticmethod
    def of(span: int) -> "Windows":
        return Windows(span, span // 2, span // 2, span // 4, span // 16, span // 8)


WINDOWS = Windows.of(WINDOW_BATCHES)
