"""Identities: what a member proves itself with, and what the others pin.

A member has two key pairs. With the Ed25519 key it signs, batches as well as its own TLS
certificate; with the X25519 key it shares a secret with every other member, from which all
MAC keys follow. Two pairs, because a key that does one thing only cannot be abused for the
other.

There is no certification authority. A member signs its own certificate, the cluster file
carries a copy, and exactly that certificate is trusted: a pin. So a certificate never expires
by itself; it is withdrawn by writing another cluster file. It is marked as an end of the
chain, so that no member can vouch for further certificates.

There is one way to write a certificate, down to the byte, and any other is refused. Certificates
come from those we do not trust, and every member hands them to OpenSSL: one that our parser takes
and OpenSSL does not, or that two releases read differently, would stop everybody else.

The private file is PEM: the certificate, the Ed25519 key, the X25519 key, in this order, so
that OpenSSL finds in it what TLS needs. `quorate.runtime.files` looks after its mode.
"""

import datetime
import re
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from nacl.bindings import crypto_sign, crypto_sign_open
from nacl.exceptions import CryptoError

from quorate.core.cluster import PUBLIC_KEY_BYTES, Pinned, pins_of, read_pins
from quorate.core.errors import ConfigError
from quorate.core.names import check_name
from quorate.core.toml import Table, render_pairs

SIGNATURE_BYTES = 64

# RFC 5280 reserves the last second of the year 9999 for "no expiration date". Both ends are
# fixed, so that a clock that runs wrong never locks a member out.
_VALID_FROM = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_VALID_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
# To see what a key of somebody else's is good for.
_ANY_SIGNING = Ed25519PrivateKey.from_private_bytes(bytes(32))
_ANY_AGREEMENT = X25519PrivateKey.from_private_bytes(bytes(32))
_PUBLIC_HEAD = "# A public identity, for whoever assembles the cluster. Nothing here is secret.\n"
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\n.+?\n-----END \1-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """What others pin. Nothing in it is secret."""

    name: str
    sign_key: bytes
    mac_key: bytes
    certificate: str


class Identity:
    """A member's private keys. They leave this object only through `private_pem`."""

    __slots__ = ("_agreement", "_public", "_signing", "_signing_bytes")

    def __init__(
        self, signing: Ed25519PrivateKey, agreement: X25519PrivateKey, certificate: str, name: str
    ) -> None:
        self._signing = signing
        self._agreement = agreement
        sign_key = signing.public_key().public_bytes_raw()
        mac_key = agreement.public_key().public_bytes_raw()
        # Signing is what costs a producer and a store most: PyNaCl is faster at it, and wants both
        # halves of the key.
        self._signing_bytes = signing.private_bytes_raw() + sign_key
        self._public = checked(PublicIdentity(name, sign_key, mac_key, certificate))

    @staticmethod
    def generate(name: str) -> "Identity":
        """New keys, and a certificate in this name."""
        check_name("the name of an identity", name)
        signing = Ed25519PrivateKey.generate()
        unsigned = _unsigned(name, signing.public_key(), x509.random_serial_number())
        certificate = _pem_of(unsigned.sign(signing, algorithm=None))
        return Identity(signing, X25519PrivateKey.generate(), certificate, name)

    @staticmethod
    def from_pem(text: str) -> "Identity":
        """Read back what `private_pem` wrote."""
        blocks = [match.group() for match in _PEM_BLOCK.finditer(text)]
        if len(blocks) != 3:
            raise ConfigError(
                "a private key file has three PEM blocks (certificate, Ed25519 key, X25519 key), "
                f"this one has {len(blocks)}"
            )
        certificate, signing_pem, agreement_pem = blocks
        signing, agreement = _private_key(signing_pem), _private_key(agreement_pem)
        if not isinstance(signing, Ed25519PrivateKey):
            raise ConfigError("the first private key of a private key file must be Ed25519")
        if not isinstance(agreement, X25519PrivateKey):
            raise ConfigError("the second private key of a private key file must be X25519")
        name = _common_name(_certificate(certificate, "this key file"))
        return Identity(signing, agreement, certificate, name)

    @property
    def public(self) -> PublicIdentity:
        return self._public

    def sign(self, data: bytes) -> bytes:
        """An Ed25519 signature. What it is for must be readable from the data itself."""
        return crypto_sign(data, self._signing_bytes)[:SIGNATURE_BYTES]

    def shared_secret(self, peer: PublicIdentity) -> bytes:
        """32 bytes that only this identity and the peer can compute: input for `derive_key`."""
        try:
            return self._agreement.exchange(X25519PublicKey.from_public_bytes(peer.mac_key))
        except ValueError as error:
            raise _unusable(peer) from error

    def private_pem(self) -> str:
        """Everything, secrets included, for the file that this member keeps to itself."""
        keys = (_pem(self._signing), _pem(self._agreement))
        return "".join((self._public.certificate, *keys))

    def __repr__(self) -> str:
        return f"Identity({self._public.name!r})"

    def __reduce__(self) -> str:
        raise TypeError("an identity is never pickled: it would carry its private keys along")


def is_signed(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the owner of this Ed25519 key signed exactly this."""
    if len(signature) != SIGNATURE_BYTES:
        # The library takes both in one piece, and would take the rest for a part of the data.
        return False
    try:
        crypto_sign_open(signature + data, public_key)
    except (CryptoError, ValueError):
        return False
    return True


def public_of(member: Pinned) -> PublicIdentity:
    """The identity that a cluster file pins for a member, its parts checked to agree."""
    return checked(PublicIdentity(name=member.name, **pins_of(member)))


def render_public(public: PublicIdentity) -> str:
    """The small file that a member hands out, so that others can pin it."""
    return _PUBLIC_HEAD + render_pairs({"name": public.name, **pins_of(public)})


def parse_public(text: str) -> PublicIdentity:
    """Read what `render_public` wrote, and nothing that holds a private key."""
    if "PRIVATE KEY" in text:
        raise ConfigError(
            "this file holds a private key, which must stay with its owner; "
            "ask for the public file, NAME.pub, and treat the private key as known to others"
        )
    table = Table.read("a public identity", text)
    public = PublicIdentity(name=table.text("name"), **read_pins(table))
    table.end()
    return checked(public)


@lru_cache(maxsize=4096)
def checked(public: PublicIdentity) -> PublicIdentity:
    """The same identity, once all that others do with its keys and its certificate is possible."""
    check_name("the name of an identity", public.name)
    certificate = _certificate(public.certificate, public.name)
    try:
        name, key = _common_name(certificate), certificate.public_key()
    except Exception as error:
        # The parser looks at these only now, and has many ways to say no.
        raise ConfigError(f"the certificate of {public.name} cannot be read") from error
    if name != public.name:
        raise ConfigError(f"the certificate of {public.name} is in the name of {name!r}")
    if not isinstance(key, Ed25519PublicKey) or key.public_bytes_raw() != public.sign_key:
        raise ConfigError(f"the certificate of {public.name} belongs to another sign_key")
    if not _is_as_made_here(certificate, public, key):
        raise ConfigError(f"the certificate of {public.name} is not written as Quorate does it")
    if len(public.mac_key) != PUBLIC_KEY_BYTES:
        raise ConfigError(f"the mac_key of {public.name} must have {PUBLIC_KEY_BYTES} bytes")
    try:
        # Points of which every multiple is zero are the same to every private key.
        _ANY_AGREEMENT.exchange(X25519PublicKey.from_public_bytes(public.mac_key))
    except ValueError as error:
        raise _unusable(public) from error
    return public


def check_keys(member: Pinned) -> None:
    """As `public_of`, with one sentence for whatever is wrong: replicas must all say the same."""
    try:
        public_of(member)
    except ConfigError:
        raise ConfigError(
            f"the keys and the certificate of {member.name} are not those of an identity in that "
            f"name; 'quorate identity new' makes one"
        ) from None


def _unusable(public: PublicIdentity) -> ConfigError:
    return ConfigError(f"the mac_key of {public.name} is not a usable X25519 key")


def _is_as_made_here(
    certificate: x509.Certificate, public: PublicIdentity, key: Ed25519PublicKey
) -> bool:
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes)
        made = _unsigned(public.name, key, certificate.serial_number).sign(_ANY_SIGNING, None)
    except (InvalidSignature, ValueError):
        return False
    # The signature stands at the end.
    der = serialization.Encoding.DER
    found, expected = (each.public_bytes(der)[:-SIGNATURE_BYTES] for each in (certificate, made))
    return found == expected and _pem_of(certificate) == public.certificate


def _unsigned(name: str, public: Ed25519PublicKey, serial: int) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_signatures_only(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(key_identifier, critical=False)
    )


def _signatures_only() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem(key: Ed25519PrivateKey | X25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _private_key(pem: str) -> object:
    try:
        return serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        # Whatever the parser said about a private key does not belong in a log.
        raise ConfigError("a private key in this key file cannot be read") from None


def _certificate(pem: str, whose: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except (ValueError, x509.InvalidVersion) as error:
        raise ConfigError(f"the certificate of {whose} cannot be read as PEM") from error


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""
