"""Twins: two correct machines with one identity.

Source: Bano, Sonnino, Chursin, Perelman, Li, Ching and Malkhi 2020, "Twins: BFT systems made
robust". A node that runs twice, with the network deciding which peer talks to which copy,
equivocates, forgets and double-votes without one line of adversary code.

A `Split` says which peers talk to which twin. It holds in both directions: a twin hears, and
is heard by, the peers on its side. Both speak under one node number, so a peer cannot tell.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag
from random import Random

from quorate.core.ids import NodeId


class Side(Flag):
    """Which of the two: the one that was there first is A."""

    A = 1
    B = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class Split:
    """Which peer talks to which twin; those that are not named talk to both."""

    sides: Mapping[NodeId, Side] = field(default_factory=dict)

    def joins(self, peer: NodeId, side: Side) -> bool:
        """Whether this peer and the twin on this side talk to each other."""
        return side in self.sides.get(peer, Side.BOTH)

    @classmethod
    def by_lot(cls, random: Random, peers: Iterable[NodeId]) -> "Split":
        """Each peer draws A, B or both."""
        return cls({peer: random.choice((Side.A, Side.B, Side.BOTH)) for peer in peers})


EVERYBODY_HAS_BOTH = Split()
