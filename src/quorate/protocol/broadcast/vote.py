"""Voting (F6): Byzantine replicas, no order.

Source: FIT-Broker 2013, section 4.4.1, algorithms 2 and 3.
Fault model: n = 2f + 1 replicas, at most f Byzantine; sources are correct.

A source sends to all replicas, every replica forwards once, and a destination delivers when
f + 1 replicas vouch for the same content: one of them is correct, and a correct replica
forwards only what the source sent. Replies to requests are voted on in the same way (see
`quorate.protocol.voting`).

A source that lies can tell different replicas different things. With 2f + 1 replicas two
destinations may then deliver different contents, or one may deliver and the other not; a
topic whose publishers are not trusted asks for `authenticated` or `reliable`.

Invariants, for a correct source:
- what a destination delivers, the source sent;
- a batch that the source sent, every correct destination delivers.
"""

from quorate.protocol.broadcast.scope import Rules

RULES = Rules(
    guarantee="at least one correct replica has it and will forward it",
    copies_to_deliver=lambda quorum: quorum.one_correct,
    replicas_to_settle=lambda quorum: quorum.one_correct,
)
