"""An identity proves itself, keeps its secrets, and is pinned as a whole."""

import base64
import pickle
import ssl
from dataclasses import dataclass, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from quorate.core.errors import ConfigError
from quorate.crypto.identity import (
    SIGNATURE_BYTES,
    Identity,
    PublicIdentity,
    check_keys,
    is_signed,
    parse_public,
    public_of,
    render_public,
)

ALICE = Identity.generate("alice")
BOB = Identity.generate("bob")
CAROL = Identity.generate("carol")
MESSAGE = b"the batch with number 7"
SIGNATURE = ALICE.sign(MESSAGE)


def test_an_identity_survives_being_written_and_read() -> None:
    again = Identity.from_pem(ALICE.private_pem())

    assert again.public == ALICE.public
    assert again.sign(MESSAGE) == SIGNATURE
    assert again.shared_secret(BOB.public) == ALICE.shared_secret(BOB.public)


def test_a_public_identity_survives_being_written_and_read() -> None:
    assert parse_public(render_public(ALICE.public)) == ALICE.public


def test_two_identities_of_one_name_share_no_key() -> None:
    other = Identity.generate("alice")

    assert other.public.sign_key != ALICE.public.sign_key
    assert other.public.mac_key != ALICE.public.mac_key


def test_a_signature_verifies_for_its_signer_and_data() -> None:
    assert is_signed(ALICE.public.sign_key, MESSAGE, SIGNATURE)


@given(data=st.binary(max_size=300))
def test_a_signature_is_the_one_that_any_other_library_makes_with_this_key(data: bytes) -> None:
    _, pem, _ = ALICE.private_pem().split("-----BEGIN PRIVATE KEY-----")
    key = serialization.load_pem_private_key(b"-----BEGIN PRIVATE KEY-----" + pem.encode(), None)
    assert isinstance(key, Ed25519PrivateKey)

    assert ALICE.sign(data) == key.sign(data)


def test_a_signature_is_refused_for_another_signer() -> None:
    assert not is_signed(BOB.public.sign_key, MESSAGE, SIGNATURE)


@pytest.mark.parametrize("position", range(len(MESSAGE)))
def test_a_signature_is_refused_when_any_byte_of_the_data_changes(position: int) -> None:
    assert not is_signed(ALICE.public.sign_key, with_changed_byte(MESSAGE, position), SIGNATURE)


@pytest.mark.parametrize("position", range(SIGNATURE_BYTES))
def test_a_signature_is_refused_when_any_byte_of_itself_changes(position: int) -> None:
    assert not is_signed(ALICE.public.sign_key, MESSAGE, with_changed_byte(SIGNATURE, position))


@given(st.binary(max_size=100))
def test_random_bytes_are_no_signature(junk: bytes) -> None:
    assert not is_signed(ALICE.public.sign_key, MESSAGE, junk)


def test_both_ends_compute_the_same_secret_and_a_third_does_not() -> None:
    assert ALICE.shared_secret(BOB.public) == BOB.shared_secret(ALICE.public)
    assert ALICE.shared_secret(CAROL.public) != ALICE.shared_secret(BOB.public)


def test_a_mac_key_that_would_make_the_secret_public_is_refused() -> None:
    # The all-zero point gives a shared secret of zero, whoever computes it.
    weak = replace(BOB.public, mac_key=bytes(32))
    with pytest.raises(ConfigError, match="mac_key of bob is not a usable X25519 key"):
        ALICE.shared_secret(weak)


def test_an_identity_shows_its_name_and_none_of_its_secrets() -> None:
    shown = f"{ALICE!r} {ALICE} {ALICE.public!r}"

    assert repr(ALICE) == "Identity('alice')"
    for secret in private_bytes(ALICE):
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
        assert base64.b64encode(secret).decode() not in shown


def test_an_identity_refuses_to_be_pickled() -> None:
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(ALICE)


@pytest.mark.parametrize("name", ["", "Alice", "-alice", "a/b", "a" * 64, "al ice", "ålice", "a\n"])
def test_a_name_that_cannot_stand_everywhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has 1 to 63 characters"):
        Identity.generate(name)


def test_the_longest_allowed_name_fits_into_a_certificate() -> None:
    name = "a" * 63
    assert Identity.from_pem(Identity.generate(name).private_pem()).public.name == name


def test_a_member_of_a_cluster_file_has_a_public_identity() -> None:
    assert public_of(pinned(ALICE.public)) == ALICE.public


def test_a_certificate_of_another_member_is_refused() -> None:
    with pytest.raises(ConfigError, match="certificate of alice is in the name of 'bob'"):
        public_of(replace(pinned(ALICE.public), certificate=BOB.public.certificate))


def test_a_certificate_of_the_right_name_and_another_key_is_refused() -> None:
    impostor = Identity.generate("alice").public
    with pytest.raises(ConfigError, match="certificate of alice belongs to another sign_key"):
        public_of(replace(pinned(ALICE.public), certificate=impostor.certificate))


def test_a_certificate_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="certificate of alice cannot be read"):
        public_of(replace(pinned(ALICE.public), certificate="hello"))


def test_a_private_file_with_the_keys_of_two_members_is_refused() -> None:
    mixed = ALICE.public.certificate + BOB.private_pem().removeprefix(BOB.public.certificate)
    with pytest.raises(ConfigError, match="certificate of alice belongs to another sign_key"):
        Identity.from_pem(mixed)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "three PEM blocks"),
        (ALICE.public.certificate, "three PEM blocks"),
        (ALICE.public.certificate * 3, "private key in this key file cannot be read"),
        (ALICE.private_pem().replace("MC4CAQ", "MC4CAR", 1), "cannot be read"),
    ],
    ids=["empty", "a certificate alone", "three certificates", "an altered key"],
)
def test_a_broken_private_file_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Identity.from_pem(text)


@given(st.integers(0, len(ALICE.private_pem()) - 2))
def test_a_private_file_cut_short_is_refused_and_shows_nothing(length: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Identity.from_pem(ALICE.private_pem()[:length])
    assert "MC4CAQ" not in str(caught.value)


def test_a_private_file_is_no_public_identity() -> None:
    with pytest.raises(ConfigError, match="holds a private key"):
        parse_public(ALICE.private_pem())


def test_a_public_file_with_a_private_key_in_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds a private key"):
        parse_public(render_public(ALICE.public) + "# " + ALICE.private_pem().replace("\n", "\n# "))


@dataclass(frozen=True)
class Pinned:
    name: str
    sign_key: bytes
    mac_key: bytes
    certificate: str


def pinned(public: PublicIdentity) -> Pinned:
    return Pinned(public.name, public.sign_key, public.mac_key, public.certificate)


def with_changed_byte(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x01]) + data[position + 1 :]


def private_bytes(identity: Identity) -> list[bytes]:
    blocks = identity.private_pem().split("-----BEGIN PRIVATE KEY-----")[1:]
    pems = [("-----BEGIN PRIVATE KEY-----" + block).encode() for block in blocks]
    keys = [serialization.load_pem_private_key(pem, password=None) for pem in pems]
    return [
        key.private_bytes(
            serialization.Encoding.Raw,
            serialization.PrivateFormat.Raw,
            serialization.NoEncryption(),
        )
        for key in keys
    ]


# Certificates come from parties that we do not trust, and go to OpenSSL everywhere.


def test_a_mac_key_that_nobody_can_use_is_refused_before_anybody_tries() -> None:
    with pytest.raises(ConfigError, match="mac_key of alice is not a usable X25519 key"):
        public_of(replace(pinned(ALICE.public), mac_key=bytes(32)))


def test_a_certificate_that_is_laid_out_differently_is_refused() -> None:
    begin, rest = ALICE.public.certificate.split("\n", 1)
    with pytest.raises(ConfigError, match="certificate of alice is not written as Quorate does it"):
        public_of(replace(pinned(ALICE.public), certificate=f"{begin}\n\n{rest}"))


def test_a_certificate_of_the_right_key_that_another_signed_is_refused() -> None:
    der = ssl.PEM_cert_to_DER_cert(ALICE.public.certificate)
    other = ssl.DER_cert_to_PEM_cert(der[:-SIGNATURE_BYTES] + bytes(SIGNATURE_BYTES))
    with pytest.raises(ConfigError, match="certificate of alice is not written as Quorate does it"):
        public_of(replace(pinned(ALICE.public), certificate=other))


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
def test_whatever_is_altered_in_a_certificate_it_is_refused_in_a_sentence() -> None:
    """Some of these pass the parser and not OpenSSL; some make the parser raise what it likes."""
    der = ssl.PEM_cert_to_DER_cert(ALICE.public.certificate)
    for position in range(len(der)):
        for flip in (0x01, 0x02, 0x80, 0xFF):
            altered = bytearray(der)
            altered[position] ^= flip
            certificate = ssl.DER_cert_to_PEM_cert(bytes(altered))
            with pytest.raises(ConfigError, match="certificate of alice"):
                public_of(replace(pinned(ALICE.public), certificate=certificate))


@pytest.mark.parametrize(
    "wrong", [{"mac_key": bytes(32)}, {"certificate": BOB.public.certificate}, {"name": "bob"}]
)
def test_replicas_refuse_whatever_is_wrong_in_the_same_words(wrong: dict[str, Any]) -> None:
    who = wrong.get("name", "alice")
    with pytest.raises(ConfigError, match=f"the keys and the certificate of {who} are not those"):
        check_keys(replace(pinned(ALICE.public), **wrong))
