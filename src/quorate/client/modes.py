"""Which topics one client validates: its choice, for each topic, at any time (K1, K2).

Source: Kabis 2023, section 2.1 (table 2.1) and 2.1.3 (updateTopology).

A validated topic has two logs (docs/decisions/0021): its own, whose batches are signed and agreed
on by replicas some of which lie, and its companion for everybody else. A client that validates the
topic uses the former, and one that does not the latter.
"""

from collections.abc import Collection

from quorate.core.cluster import Cluster
from quorate.core.contract import companion_name
from quorate.core.errors import LocalProtocolError


class Modes:
    """What one client was told to validate; until then, all that contracts say."""

    def __init__(self, validated: frozenset[str] | None = None) -> None:
        self._validated = validated

    @staticmethod
    def of(cluster: Cluster, topics: Collection[str]) -> "Modes":
        """Validate these topics and no others."""
        for topic in topics:
            if not cluster.contract(topic).validated:
                raise LocalProtocolError(
                    f"topic '{topic}' cannot be validated, because its contract does not say so; "
                    f"allowed are {_validated(cluster)}"
                )
        return Modes(frozenset(topics))

    def log_of(self, cluster: Cluster, topic: str) -> str:
        """The log of a topic that a client with these modes uses."""
        is_validated = self._validated is None or topic in self._validated
        has_companion = companion_name(topic) in cluster.all_topics
        return topic if is_validated or not has_companion else companion_name(topic)


def checked_names(topics: Collection[str]) -> list[str]:
    if isinstance(topics, str):
        raise LocalProtocolError(f"update_topology takes a list of topics: [{topics!r}]")
    return list(topics)


def _validated(cluster: Cluster) -> str:
    names = [name for name, contract in cluster.topics.items() if contract.validated]
    return ", ".join(names) or "none in this cluster"
