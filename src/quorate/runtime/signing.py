"""Signatures of replicas, for what others must be able to check."""

from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from quorate.core.cluster import Cluster
from quorate.core.ids import NodeId
from quorate.crypto.checkpoint import Cosigner
from quorate.crypto.identity import Identity
from quorate.protocol.ordering.placement import GroupKind

_CONTEXT = b"quorate 2026 state of a replica\0"


class ClusterSigner:
    """Signs as one replica, and checks what the others of its cluster signed."""

    def __init__(self, cluster: Cluster, identity: Identity) -> None:
        self._identity = identity
        self._prefix = _CONTEXT + cluster.name.encode() + b"\0"
        self.adopt(cluster)

    def adopt(self, cluster: Cluster) -> None:
        """Replicas have other keys from now on."""
        self._keys = {
            replica.number: Ed25519PublicKey.from_public_bytes(replica.sign_key)
            for replica in cluster.replicas
        }

    def sign(self, data: bytes) -> bytes:
        return self._identity.sign(self._prefix + data)

    def is_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        key = self._keys.get(replica)
        if key is None:
            return False
        try:
            key.verify(signature, self._prefix + data)
        except InvalidSignature:
            return False
        return True


class ClusterNotary:
    """Signs the checkpoints of one group of a cluster as one of its replicas."""

    def __init__(self, cluster: Cluster, identity: Identity, kind: GroupKind) -> None:
        self._identity = identity
        self.origin = origin_of(cluster, kind)
        self.adopt(cluster)

    def adopt(self, cluster: Cluster) -> None:
        """Replicas have other keys from now on: what they signed before counts no more."""
        self.cosigners: Mapping[NodeId, Cosigner] = {
            replica.number: Cosigner(replica.name, replica.sign_key) for replica in cluster.replicas
        }

    def sign_note(self, data: bytes) -> bytes:
        return self._identity.sign(data)


def origin_of(cluster: Cluster, kind: GroupKind) -> str:
    """What a group's order log is called in its checkpoints."""
    return f"quorate/{cluster.name}/{kind.name.lower()}"
