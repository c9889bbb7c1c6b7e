"""Signatures of replicas, for what others must be able to check.

A replica may get another key by a command. What is signed counts if it is signed with the last key
that we know of. What was signed with a former one counts no more, and nobody is blamed for it.
"""

from collections.abc import Mapping, Sequence

from quorate.core.cluster import Cluster
from quorate.core.ids import NodeId
from quorate.crypto.checkpoint import Cosigner, log_origin
from quorate.crypto.identity import Identity, is_signed
from quorate.protocol.ordering.placement import GroupKind

_CONTEXT = b"quorate 2026 state of a replica\0"
# Of each replica, so many keys are known that it had before.
_FORMER_MAX = 8


class Keys:
    """The keys of a cluster's replicas: the last that we know of, and those that came before."""

    def __init__(self, cluster: Cluster) -> None:
        self.present = _keys_of(cluster)
        self.former: dict[NodeId, tuple[Cosigner, ...]] = {}
        self._revision = cluster.revision

    def adopt(self, cluster: Cluster) -> None:
        """What the cluster is, or was: a file may be ahead of the commands that we carry out."""
        later, earlier = _keys_of(cluster), self.present
        if cluster.revision >= self._revision:
            self.present, self._revision = later, cluster.revision
        else:
            later, earlier = earlier, later
        for number, key in earlier.items():
            known = self.former.get(number, ())
            if key != later.get(number) and key not in known:
                self.former[number] = (*known, key)[-_FORMER_MAX:]


def _keys_of(cluster: Cluster) -> dict[NodeId, Cosigner]:
    return {each.number: Cosigner(each.name, each.sign_key) for each in cluster.replicas}


class ClusterSigner:
    """Signs as one replica, and checks what the others of its cluster signed."""

    def __init__(self, cluster: Cluster, identity: Identity) -> None:
        self._identity = identity
        self._prefix = _CONTEXT + cluster.full_name.encode() + b"\0"
        self._keys = Keys(cluster)

    def adopt(self, cluster: Cluster) -> None:
        self._keys.adopt(cluster)

    def sign(self, data: bytes) -> bytes:
        return self._identity.sign(self._prefix + data)

    def is_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        return self.is_attested_by(replica, self._prefix + data, signature)

    def was_signed_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        return self.was_attested_by(replica, self._prefix + data, signature)

    def attest(self, data: bytes) -> bytes:
        return self._identity.sign(data)

    def is_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        present = self._keys.present.get(replica)
        return present is not None and is_signed(present.public_key, data, signature)

    def was_attested_by(self, replica: NodeId, data: bytes, signature: bytes) -> bool:
        former = self._keys.former.get(replica, ())
        return any(is_signed(each.public_key, data, signature) for each in former)


class ClusterNotary:
    """Signs the checkpoints of one group of a cluster as one of its replicas."""

    def __init__(self, cluster: Cluster, identity: Identity, kind: GroupKind) -> None:
        self._identity = identity
        self.origin = origin_of(cluster, kind)
        self._keys = Keys(cluster)

    def adopt(self, cluster: Cluster) -> None:
        self._keys.adopt(cluster)

    @property
    def cosigners(self) -> Mapping[NodeId, Cosigner]:
        return self._keys.present

    @property
    def former(self) -> Mapping[NodeId, Sequence[Cosigner]]:
        return self._keys.former

    @property
    def is_replaced(self) -> bool:
        present = self._keys.present.values()
        return self._identity.public.sign_key not in [each.public_key for each in present]

    def sign_note(self, data: bytes) -> bytes:
        return self._identity.sign(data)


def origin_of(cluster: Cluster, kind: GroupKind) -> str:
    """What a group's order log is called in its checkpoints."""
    return log_origin(cluster.full_name, kind.name.lower())
