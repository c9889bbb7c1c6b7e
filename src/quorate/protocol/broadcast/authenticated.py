"""Authenticated broadcast (B1).

Source: Freeman 2016, section 3.1, algorithms 1 to 3; Srikanth and Toueg 1987.
Fault model: n = 3f + 1 replicas, at most f Byzantine; sources may be Byzantine too.

A source sends to all replicas, each correct replica forwards once, and a destination delivers
when 2f + 1 replicas vouch for the same content. Freeman's algorithm 3 counts messages; it
must count messages with equal content, or 2f + 1 voices of which f lie would do
(`broken.py` keeps that reading, to show that the checkers find it).

No totality: a faulty source together with a faulty replica can reach one destination and not
another (figure 3.2), which is why a topic pairs it with histories (`history.py`).

Invariants:
- no two correct destinations deliver different contents under one sequence number, because
  two sets of 2f + 1 out of 3f + 1 replicas share a correct one, which forwards once;
- what a destination delivers, at least f + 1 correct replicas forwarded.
"""

from quorate.protocol.broadcast.scope import Rules

RULES = Rules(
    guarantee="at least f + 1 correct replicas have it and will forward it",
    copies_to_deliver=lambda quorum: quorum.majority_correct,
    replicas_to_settle=lambda quorum: quorum.majority_correct,
)
