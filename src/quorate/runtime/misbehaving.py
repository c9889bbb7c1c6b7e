"""From an operator's order to a wrapper around a live replica (B8, F13)."""

from collections.abc import Callable, Iterable
from random import Random

from quorate.core.cluster import Cluster, Replica
from quorate.core.errors import LocalProtocolError
from quorate.core.ids import MemberId, NodeId, member_of
from quorate.core.messages import Misbehave
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import (
    Drop,
    Equivocate,
    Forget,
    Lie,
    Parts,
    Replay,
    Rewrite,
    Silence,
    Slow,
    behave,
)

BEHAVIOURS = ("behave", "slow", "lie", "drop", "silent", "equivocate", "replay", "clock", "forget")
DELAY_MS_MAX = 60_000
AHEAD_S_MAX = 10 * 365 * 24 * 3600


def wrapper_for(order: Misbehave, cluster: Cluster, me: NodeId, chance: Random) -> Rewrite:
    """The wrapper that the order asks for; a sentence if there is none."""
    _refuse_what_is_out_of_bounds(order)
    match order.behaviour:
        case "behave" | "clock":
            # Whoever has a wrong clock says what it takes for true.
            return behave
        case "slow":
            return Slow(int(order.delay_ms * 1000))
        case "lie":
            return Lie(chance, order.percent, order.fields)
        case "drop":
            return Drop(chance, order.percent)
        case "replay":
            return Replay(chance, order.percent)
        case "forget":
            return Forget()
        case "silent":
            return TowardsMembers(Silence, _towards(order, cluster, me))
        case "equivocate":
            return TowardsMembers(Equivocate, _towards(order, cluster, me))
    allowed = ", ".join(BEHAVIOURS)
    raise LocalProtocolError(f"cannot {order.behaviour!r} on purpose; allowed are {allowed}")


def _refuse_what_is_out_of_bounds(order: Misbehave) -> None:
    if not 0 <= order.percent <= 100:
        raise LocalProtocolError(f"{order.percent} percent; allowed are 0 to 100")
    if not 0 <= order.delay_ms <= DELAY_MS_MAX:
        raise LocalProtocolError(f"a delay of {order.delay_ms} ms; allowed are 0 to {DELAY_MS_MAX}")
    if not -AHEAD_S_MAX <= order.ahead_s <= AHEAD_S_MAX:
        allowed = f"allowed are {-AHEAD_S_MAX} to {AHEAD_S_MAX}"
        raise LocalProtocolError(f"a clock that is {order.ahead_s} s ahead; {allowed}")


def describe(order: Misbehave) -> str:
    """The order in a few words, for `status` and the log."""
    if order.behaviour == "behave":
        return "none"
    words = {
        "slow": f"slow by {order.delay_ms:g} ms",
        "lie": f"lies in {order.percent:g} % of its messages",
        "drop": f"drops {order.percent:g} % of its messages",
        "replay": f"replays after {order.percent:g} % of its turns",
        "silent": "silent towards " + (", ".join(order.towards) or "f replicas and all clients"),
        "equivocate": "tells lies to " + (", ".join(order.towards) or "f replicas"),
        "forget": "signs for large batches, and does not write them",
        "clock": f"has a clock that is {order.ahead_s:g} s ahead",
    }
    return words[order.behaviour]


class TowardsMembers:
    """Misbehaviour towards members, whatever session they are connected with."""

    def __init__(
        self, make: Callable[[Iterable[NodeId]], Rewrite], members: frozenset[MemberId]
    ) -> None:
        self._make = make
        self._members = members

    def __call__(self, ready: Ready, now_us: int) -> Parts:
        nodes = {node for node, _ in ready.send if member_of(node) in self._members}
        return self._make(nodes)(ready, now_us)


def _towards(order: Misbehave, cluster: Cluster, me: NodeId) -> frozenset[MemberId]:
    """Unless named: f replicas, and for silence all clients too, as Freeman's broker does."""
    if order.towards:
        return frozenset(cluster.named(name).number for name in order.towards)
    after = [r.number for r in cluster.replicas if r.number > me]
    before = [r.number for r in cluster.replicas if r.number < me]
    some_replicas = (after + before)[: cluster.f]
    if order.behaviour == "equivocate":
        return frozenset(some_replicas)
    clients = (m.number for m in cluster.members if not isinstance(m, Replica))
    return frozenset((*some_replicas, *clients))
