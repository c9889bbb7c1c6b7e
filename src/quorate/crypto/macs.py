"""Message authentication codes, with a choice of hash (B5).

Source: Freeman 2016, sections 2.4 and 6.6. The thesis puts a MAC on every message, lets the
hash be chosen, and leaves open where the keys come from. Here every pair of members derives
them from its two X25519 identities, so that a cluster file with public keys is enough.

A MAC convinces only the two who know its key, and it does not say by itself which of the two
made it. The keys between two members are therefore derived per direction: what A made for B
never verifies as made by B for A, nor in another cluster.

Tags are 16 bytes: whoever does not know the key has one guess in 2^128 per message.

Messages that both sides count, as the records of a link, can also be tagged with AES-GMAC, which
is about twice as fast as the fastest hash. It is safe as long as no number is used twice under
a key. An authenticator has no number, so where AES-GMAC is chosen BLAKE3 makes those.
"""

import hmac
from collections.abc import Mapping
from typing import Protocol, Self, TypeAlias

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quorate.core.errors import ConfigError, LocalProtocolError
from quorate.core.ids import MemberId, NodeId, member_of
from quorate.core.names import MAC_ALGORITHMS
from quorate.crypto.identity import Identity, PublicIdentity

KEY_BYTES = 32
TAG_BYTES = 16
_NONCE_BYTES = 12
AUTHENTICATOR_CONTEXT = "quorate 2026 authenticator from one member to another"

Part: TypeAlias = bytes | bytearray | memoryview


class Mac:
    """Makes and verifies tags under one key."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes, algorithm: str = "blake3") -> None:
        _check_key(key)
        # Copying a hasher that has already taken its key in is cheaper than keying a new one.
        self._keyed = _keyed_hasher(key, algorithm)

    def tag(self, *parts: Part) -> bytes:
        """The tag of the parts laid end to end, which are not copied together for it."""
        hasher = self._keyed.copy()
        for part in parts:
            hasher.update(part)
        return hasher.digest()[:TAG_BYTES]

    def verify(self, tag: Part, *parts: Part) -> bool:
        """Whether this is their tag, found out in constant time."""
        return hmac.compare_digest(self.tag(*parts), tag)


class DirectedMac(Mac):
    """Makes tags under one key and verifies under another: the two directions of a pair."""

    __slots__ = ("_reading",)

    def __init__(self, making: bytes, reading: bytes, algorithm: str = "blake3") -> None:
        super().__init__(making, algorithm)
        self._reading = Mac(reading, algorithm)

    def verify(self, tag: Part, *parts: Part) -> bool:
        return self._reading.verify(tag, *parts)


class NumberedMac(Protocol):
    """Makes and verifies the tags of messages that are numbered and never sent twice."""

    def tag(self, number: int, message: Part) -> bytes: ...
    def verify(self, number: int, tag: Part, message: Part) -> bool: ...


class Gmac:
    """AES-GMAC: the number is the nonce."""

    __slots__ = ("_aes",)

    def __init__(self, key: bytes) -> None:
        _check_key(key)
        self._aes = AESGCM(key)

    def tag(self, number: int, message: Part) -> bytes:
        return self._aes.encrypt(number.to_bytes(_NONCE_BYTES, "little"), b"", message)

    def verify(self, number: int, tag: Part, message: Part) -> bool:
        try:
            self._aes.decrypt(number.to_bytes(_NONCE_BYTES, "little"), tag, message)
        except InvalidTag:
            return False
        return True


class NumberedHash:
    """A keyed hash of the message and its number."""

    __slots__ = ("_mac",)

    def __init__(self, key: bytes, algorithm: str) -> None:
        self._mac = Mac(key, algorithm)

    # A number in front would push the message off the blocks that BLAKE3 takes in parallel.

    def tag(self, number: int, message: Part) -> bytes:
        return self._mac.tag(message, number.to_bytes(_NONCE_BYTES, "little"))

    def verify(self, number: int, tag: Part, message: Part) -> bool:
        return self._mac.verify(tag, message, number.to_bytes(_NONCE_BYTES, "little"))


def numbered_mac(key: bytes, algorithm: str) -> NumberedMac:
    return Gmac(key) if algorithm == "aes-gmac" else NumberedHash(key, algorithm)


class PairwiseMacs:
    """MACs between this node and any other: what the chain's authenticators are made of."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[MemberId, Mac]) -> None:
        self._keys = dict(keys)

    @staticmethod
    def between(
        identity: Identity,
        members: Mapping[MemberId, PublicIdentity],
        algorithm: str = "blake3",
        *,
        cluster: str,
    ) -> "PairwiseMacs":
        """Derive the keys between this identity and each of the other members."""
        own = identity.public
        others = {number: peer for number, peer in members.items() if peer.name != own.name}
        return PairwiseMacs(
            {
                number: _between_two(identity, peer, algorithm, cluster)
                for number, peer in others.items()
            }
        )

    def adopt(self, other: "PairwiseMacs") -> None:
        """Members have other keys from now on."""
        self._keys = other._keys

    def tag(self, peer: NodeId, data: bytes) -> bytes:
        """Authenticate the data towards this peer."""
        mac = self._keys.get(member_of(peer))
        if mac is None:
            raise LocalProtocolError(f"there is no key shared with node {peer}, so no MAC for it")
        return mac.tag(data)

    def verify(self, peer: NodeId, data: bytes, tag: bytes) -> bool:
        """Whether this peer made the tag for us; never so for a peer we share no key with."""
        mac = self._keys.get(member_of(peer))
        return mac is not None and mac.verify(tag, data)


def derive_key(secret: bytes, context: str, *parts: bytes) -> bytes:
    """A key for one purpose and one combination of parts.

    Each input goes in behind its length, so that ("ab", "c") and ("a", "bc") cannot meet.
    """
    hasher = blake3(derive_key_context=context)
    for part in (secret, *parts):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest()


class _Hasher(Protocol):
    """What BLAKE3 and HMAC have in common."""

    def copy(self) -> Self: ...
    def update(self, data: Part, /) -> object: ...
    def digest(self) -> bytes: ...


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise LocalProtocolError(f"a MAC key has {KEY_BYTES} bytes, this one has {len(key)}")


def _keyed_hasher(key: bytes, algorithm: str) -> _Hasher:
    if algorithm not in MAC_ALGORITHMS:
        allowed = ", ".join(MAC_ALGORITHMS)
        raise ConfigError(f"there is no MAC algorithm {algorithm!r}; choose one of {allowed}")
    if algorithm in ("blake3", "aes-gmac"):
        return blake3(key=key)
    return hmac.new(key, digestmod=algorithm.removeprefix("hmac-"))


def _between_two(
    identity: Identity, peer: PublicIdentity, algorithm: str, cluster: str
) -> DirectedMac:
    secret = identity.shared_secret(peer)
    own = identity.public

    def key(maker: PublicIdentity, reader: PublicIdentity) -> bytes:
        names = (cluster.encode(), maker.name.encode(), reader.name.encode())
        return derive_key(secret, AUTHENTICATOR_CONTEXT, *names, maker.mac_key, reader.mac_key)

    return DirectedMac(key(own, peer), key(peer, own), algorithm)
