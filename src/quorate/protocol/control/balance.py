"""Who in a group shall read which partition.

Every partition goes to one member that subscribed to its topic, if there is one. Rules, the first
before the second:

1. Balance. No partition, nor a chain of partitions each passed on to the next member, can go from
   a member to another that has two less. So members with equal subscriptions differ by at most
   one, and whatever the subscriptions are, the shares are as even as these allow: what cannot be
   improved by a chain cannot be improved at all (Harvey, Ladner, Lovász and Tamir 2006,
   "Semi-matchings for bipartite graphs and load balancing").
2. Stickiness. What was assigned stays where it is unless balance needs it elsewhere. Where all
   subscriptions are equal, no balanced assignment moves fewer partitions; where they are not, a
   chain is the shortest to its end, and prefers what has to move anyway.

The result follows from the arguments and their order alone. A member from which no chain leads
down is never looked at again: chains end at the least that can be reached, and sources are taken
from the most loaded on, so nothing that a chain changes opens a way from there.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from quorate.core.ids import NodeId

Owners = dict[str, list[NodeId | None]]


def balance(
    subscriptions: Mapping[NodeId, Sequence[str]], before: Mapping[str, Sequence[NodeId | None]]
) -> Owners:
    """The owner of each partition, for members in the order in which they joined.

    `before` has every topic with as many entries as it has partitions: who had which.
    """
    shares = _Shares(subscriptions, before)
    shares.fill()
    shares.even_out()
    return shares.owners()


class _Shares:
    """An assignment while it is made."""

    def __init__(
        self,
        subscriptions: Mapping[NodeId, Sequence[str]],
        before: Mapping[str, Sequence[NodeId | None]],
    ) -> None:
        self._before = before
        self._topics = sorted(before)
        self._subscribers: dict[str, list[NodeId]] = {topic: [] for topic in self._topics}
        for node, topics in subscriptions.items():
            for topic in topics:
                self._subscribers[topic].append(node)
        self._ranks = {node: rank for rank, node in enumerate(subscriptions)}
        self._loads = dict.fromkeys(subscriptions, 0)
        # The last of a list is given away first: what came last has moved already.
        self._owned: dict[NodeId, dict[str, list[int]]] = {node: {} for node in subscriptions}

    def fill(self) -> None:
        """Keep what can be kept, and give the rest to whoever has least.

        Topics that few may read come first, since the others have more of a choice.
        """
        left: dict[str, list[int]] = {}
        for topic in self._topics:
            allowed = set(self._subscribers[topic])
            for partition, node in enumerate(self._before[topic]):
                if node is not None and node in allowed:
                    self._give(node, topic, partition)
                else:
                    left.setdefault(topic, []).append(partition)
        for topic in sorted(left, key=lambda topic: len(self._subscribers[topic])):
            waiting = [
                (self._loads[node], self._ranks[node], node) for node in self._subscribers[topic]
            ]
            heapify(waiting)
            for partition in left[topic] if waiting else ():
                _, rank, node = waiting[0]
                self._give(node, topic, partition)
                heapreplace(waiting, (self._loads[node], rank, node))

    def even_out(self) -> None:
        """Pass partitions on until nobody can be relieved."""
        heavy = [(-load, self._ranks[node], node) for node, load in self._loads.items()]
        heapify(heavy)
        while heavy:
            negative, rank, node = heavy[0]
            if -negative != self._loads[node]:
                heapreplace(heavy, (-self._loads[node], rank, node))
            elif not self._relieve(node):
                heappop(heavy)

    def owners(self) -> Owners:
        owners: Owners = {topic: [None] * len(self._before[topic]) for topic in self._topics}
        for node, owned in self._owned.items():
            for topic, partitions in owned.items():
                for partition in partitions:
                    owners[topic][partition] = node
        return owners

    def _give(self, node: NodeId, topic: str, partition: int) -> None:
        self._owned[node].setdefault(topic, []).append(partition)
        self._loads[node] += 1

    def _relieve(self, source: NodeId) -> bool:
        """Pass one partition on, along the shortest chain to the least loaded at its end."""
        came_from: dict[NodeId, tuple[NodeId, str]] = {}
        floor = min(self._loads.values())
        least = source
        for node in self._reach(source, came_from):
            if self._loads[node] < self._loads[least]:
                least = node
            if self._loads[least] == floor:
                break
        if self._loads[least] > self._loads[source] - 2:
            return False
        node = least
        while node != source:
            giver, topic = came_from[node]
            self._owned[node].setdefault(topic, []).append(self._owned[giver][topic].pop())
            node = giver
        self._loads[source] -= 1
        self._loads[least] += 1
        return True

    def _reach(
        self, source: NodeId, came_from: dict[NodeId, tuple[NodeId, str]]
    ) -> Iterator[NodeId]:
        """Whom a chain from here can end at, the nearest first; notes who gives them what."""
        passed: set[str] = set()
        waiting = deque([source])
        while waiting:
            node = waiting.popleft()
            for topic, partitions in self._owned[node].items():
                if not partitions or topic in passed:
                    continue
                passed.add(topic)
                for other in self._subscribers[topic]:
                    if other != source and other not in came_from:
                        came_from[other] = (node, topic)
                        waiting.append(other)
                        yield other
