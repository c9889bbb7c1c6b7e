"""Hard upper bounds on everything that comes from outside.

They are checked before anything is allocated. A correct party never reaches them; whoever
does is refused, and named.
"""

BATCH_BYTES_MAX = 8 * 1024 * 1024
BATCH_EVENTS_MAX = 1_000_000
FRAME_BYTES_MAX = 16 * 1024 * 1024
CONTROL_BYTES_MAX = 1024 * 1024
RUN_BATCHES_MAX = 4096
AUTHENTICATORS_MAX = 4096

# How far a stream may run ahead of the oldest batch that is not settled. Sources keep fewer
# batches in flight than this; replicas and destinations refuse what lies beyond.
WINDOW_BATCHES = 4096
