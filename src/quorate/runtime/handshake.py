"""How two members meet on a new connection.

The dialler says Hello, the listener answers with its own. A Hello is 77 bytes: magic, version,
the node (the number of a member, and the session of a client that may have several), a digest
over the identity of its cluster, and a nonce that is never used again. It claims and proves
nothing. The proof depends on the link security of the cluster:

- `tls`: the Hello comes through a TLS 1.3 session, and the certificate of that session must be
  the one that the cluster file pins for the member in the Hello.
- `mac`: each side sends an empty record as its first one. Its tag needs a session key, one per
  direction, that follows from the X25519 secret of the two members, both Hellos and who dialled.
  Both nonces are in the key, so nothing recorded in one session verifies in another; the names
  and the direction are in it, so nothing can be reflected to its maker.

A Hello has the highest version of the protocol that its sender speaks. Both speak the lower of the
two, and a program speaks its own version and the one before. Nothing of before version 2 is spoken.

A stranger who opens connections therefore costs little: secrets are computed once per member
and never per connection, and nothing is answered before a well-formed Hello of a known number.
"""

import secrets
from dataclasses import dataclass
from struct import Struct

from blake3 import blake3

from quorate.core.cluster import Cluster, Replica
from quorate.core.errors import AuthenticationError, ConfigError, RemoteProtocolError
from quorate.core.ids import SESSION_MAX, MemberId, NodeId, member_of, node_of
from quorate.crypto.identity import Identity, public_of
from quorate.crypto.macs import NumberedMac, derive_key, numbered_mac
from quorate.runtime.records import TaggedRecords

MAGIC = b"QRTE"
# The version that we speak, and the oldest one that we speak with others. Version 1 had no identity
# of the cluster.
VERSION, OLDEST = 2, 2
NONCE_BYTES = 32
# magic, version, node, digest of the cluster file, nonce
_HELLO = Struct(f"<4sBQ32s{NONCE_BYTES}s")
HELLO_BYTES = _HELLO.size

_SESSION_CONTEXT = "quorate 2026 link session, one direction"


@dataclass(frozen=True, slots=True)
class Hello:
    """What a member says first: who it claims to be, in which cluster, in which session."""

    node: NodeId
    cluster: bytes
    nonce: bytes
    version: int = VERSION

    def pack(self) -> bytes:
        return _HELLO.pack(MAGIC, self.version, self.node, self.cluster, self.nonce)


class Credentials:
    """What this node shows to others, and checks them by."""

    def __init__(self, cluster: Cluster, identity: Identity, session: int | None = None) -> None:
        own = cluster.named(identity.public.name)
        if public_of(own) != identity.public:
            raise ConfigError(
                f"the keys of {own.name} are not those that cluster {cluster.name} pins for it"
            )
        if session is None:
            session = 0 if isinstance(own, Replica) else 1 + secrets.randbelow(SESSION_MAX)
        self.node = node_of(own.number, session)
        self._identity = identity
        self._secrets: dict[MemberId, bytes] = {}
        self._digest = cluster_digest(cluster)
        self.adopt(cluster)

    def adopt(self, cluster: Cluster) -> None:
        """The cluster has other members, or members with other keys, from now on."""
        self._cluster = cluster
        self._members = {member.number: member for member in cluster.members}
        self._secrets.clear()

    def hello(self) -> Hello:
        """Our Hello for one new connection."""
        return Hello(self.node, self._digest, secrets.token_bytes(NONCE_BYTES), VERSION)

    def check(self, packed: memoryview, *, dialled: NodeId | None) -> Hello:
        """The peer's Hello, if it is one that we may go on with."""
        magic, version, node, cluster, nonce = _HELLO.unpack(packed)
        check_magic(magic)
        if version < OLDEST:
            raise RemoteProtocolError(
                f"speaks version {version} of the protocol; allowed are {OLDEST} and later: update "
                "that program"
            )
        self._check_node(node)
        if cluster != self._digest:
            raise RemoteProtocolError(
                f"claims to be {self.name(node)} and has another cluster file than we have: "
                "another identity, or links that are secured in another way"
            )
        if dialled is not None and node != dialled:
            raise AuthenticationError(
                f"claims to be {self.name(node)} where {self.name(dialled)} was dialled"
            )
        return Hello(node, cluster, nonce, version)

    def _check_node(self, node: NodeId) -> None:
        member = self._members.get(member_of(node))
        if member is None or member.number == member_of(self.node):
            raise AuthenticationError(
                f"claims number {member_of(node)}, which is no other member of {self._cluster.name}"
            )
        if isinstance(member, Replica) and node != member.number:
            raise RemoteProtocolError(
                f"claims to be {member.name} in a session of its own, which only clients have"
            )

    def session(self, ours: Hello, theirs: Hello, *, dialled: bool) -> TaggedRecords:
        """The records of one `mac` session, keyed per direction."""
        dialler, listener = (ours, theirs) if dialled else (theirs, ours)
        secret = self._secret(member_of(theirs.node))

        def mac(maker: Hello) -> NumberedMac:
            parts = (dialler.pack(), listener.pack(), maker.pack())
            names = (self.name(hello.node).encode() for hello in (dialler, listener))
            own = self._cluster.full_name.encode()
            key = derive_key(secret, _SESSION_CONTEXT, own, *names, *parts)
            return numbered_mac(key, self._cluster.mac)

        return TaggedRecords(outbound=mac(ours), inbound=mac(theirs))

    def name(self, node: NodeId) -> str:
        return self._members[member_of(node)].name

    def _secret(self, number: MemberId) -> bytes:
        secret = self._secrets.get(number)
        if secret is None:
            secret = self._identity.shared_secret(public_of(self._members[number]))
            self._secrets[number] = secret
        return secret


def check_magic(start: bytes) -> None:
    """Refuse at the first four bytes what is not Quorate at all."""
    if start != MAGIC:
        raise RemoteProtocolError(f"does not speak Quorate: it began with {start!r}")


def cluster_digest(cluster: Cluster) -> bytes:
    """What two members must agree on before they can talk: what never changes.

    The identity has the founding members only, so that one that comes, or has new keys, does not
    cut off whoever has the older file. Each proves who it is by the keys that are pinned for it.
    """
    hasher = blake3()
    for part in (cluster.full_name, cluster.link_security, cluster.mac):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part.encode())
    return hasher.digest()
