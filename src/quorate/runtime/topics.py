"""From the cluster file to what the machines need."""

from quorate.core.cluster import Cluster
from quorate.core.ids import MemberId
from quorate.crypto.identity import Identity, public_of
from quorate.crypto.macs import PairwiseMacs
from quorate.protocol import topic
from quorate.protocol.topic import Topic


def topics_of(cluster: Cluster) -> list[Topic]:
    """Every topic with the replicas that serve it and the faults that they tolerate."""
    for name, contract in cluster.topics.items():
        contract.check_available(name)
    return topic.topics_of(cluster)


def client_names(cluster: Cluster) -> dict[MemberId, str]:
    return {client.number: client.name for client in cluster.clients}


def macs_of(cluster: Cluster, identity: Identity) -> PairwiseMacs:
    members = {member.number: public_of(member) for member in cluster.members}
    return PairwiseMacs.between(identity, members, cluster.mac, cluster=cluster.full_name)
