"""First answer wins (F5): crash faults, no order.

Source: FIT-Broker 2013, section 4.4.1, algorithm 1.
Fault model: n = f + 1 replicas, at most f of which crash; nobody lies.

A source sends to all replicas, every replica forwards once, and a destination delivers the
first copy that reaches it. It takes payloads from one replica, its lead, and digests from the
others; a digest says that a copy exists, so if the lead crashes, the destination fetches what
it misses from a replica that has it.

Invariants:
- a destination delivers a batch at most once;
- a batch that a correct source sent, every correct destination delivers.
"""

from quorate.protocol.broadcast.scope import Rules

RULES = Rules(
    guarantee="one replica has it, and the publisher sends it to the others while it is there",
    copies_to_deliver=lambda _: 1,
    replicas_to_settle=lambda _: 1,
)
