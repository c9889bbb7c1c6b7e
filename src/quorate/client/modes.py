"""Which topics one client validates: its choice, for each topic, at any time (K1, K2).

Source: Kabis 2023, section 2.1 (table 2.1) and 2.1.3 (updateTopology).

What is published on a validated topic by a client that does not validate it is a basic batch in the
same log. A client that validates the topic reads the signed batches, and one that does not all.
"""

from collections.abc import Collection

from quorate.core.cluster import Cluster
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

    def validates(self, cluster: Cluster, topic: str) -> bool:
        is_chosen = self._validated is None or topic in self._validated
        return is_chosen and cluster.contract(topic).validated


def checked_names(topics: Collection[str]) -> list[str]:
    if isinstance(topics, str):
        raise LocalProtocolError(f"update_topology takes a list of topics: [{topics!r}]")
    return list(topics)


def _validated(cluster: Cluster) -> str:
    names = [name for name, contract in cluster.topics.items() if contract.validated]
    return ", ".join(names) or "none in this cluster"
