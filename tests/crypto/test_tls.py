"""The certificate of an identity carries mutual TLS 1.3 when pinned, and not otherwise."""

import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from quorate.crypto.identity import Identity

REPLICA = Identity.generate("r0")
CLIENT = Identity.generate("alice")
STRANGER = Identity.generate("mallory")
ROUNDS_MAX = 10


def test_two_pinned_identities_shake_hands_with_tls_1_3(tmp_path: Path) -> None:
    server, client = shake_hands(
        context(REPLICA, pins=[STRANGER, CLIENT], server=True, directory=tmp_path),
        context(CLIENT, pins=[STRANGER, REPLICA], server=False, directory=tmp_path),
    )

    assert client.version() == "TLSv1.3"
    assert client.getpeercert(binary_form=True) == der(REPLICA)
    assert server.getpeercert(binary_form=True) == der(CLIENT)


def test_pins_hold_under_the_strict_rules_that_newer_pythons_set(tmp_path: Path) -> None:
    strict = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    server_side = context(REPLICA, pins=[CLIENT], server=True, directory=tmp_path)
    client_side = context(CLIENT, pins=[REPLICA], server=False, directory=tmp_path)
    for side in (server_side, client_side):
        side.verify_flags |= strict

    _, client = shake_hands(server_side, client_side)

    assert client.getpeercert(binary_form=True) == der(REPLICA)


def test_a_client_refuses_a_server_that_it_did_not_pin(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            context(STRANGER, pins=[CLIENT], server=True, directory=tmp_path),
            context(CLIENT, pins=[REPLICA], server=False, directory=tmp_path),
        )


def test_a_server_refuses_a_client_that_it_did_not_pin(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            context(REPLICA, pins=[CLIENT], server=True, directory=tmp_path),
            context(STRANGER, pins=[REPLICA], server=False, directory=tmp_path),
        )


def test_a_pinned_name_with_other_keys_is_refused(tmp_path: Path) -> None:
    impostor = Identity.generate("r0")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(
            context(impostor, pins=[CLIENT], server=True, directory=tmp_path),
            context(CLIENT, pins=[REPLICA], server=False, directory=tmp_path),
        )


def test_a_server_refuses_a_client_without_a_certificate(tmp_path: Path) -> None:
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname = False
    anonymous.load_verify_locations(cadata=REPLICA.public.certificate)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(context(REPLICA, pins=[CLIENT], server=True, directory=tmp_path), anonymous)


def context(
    identity: Identity, *, pins: Sequence[Identity], server: bool, directory: Path
) -> ssl.SSLContext:
    side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    side.minimum_version = ssl.TLSVersion.TLSv1_3
    side.check_hostname = False
    side.verify_mode = ssl.CERT_REQUIRED
    side.load_verify_locations(cadata="".join(pin.public.certificate for pin in pins))
    file = directory / identity.public.name
    file.write_text(identity.private_pem())
    side.load_cert_chain(file)
    return side


def shake_hands(
    server_side: ssl.SSLContext, client_side: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server)
    unfinished = [client, server]
    for _ in range(ROUNDS_MAX):
        unfinished = [end for end in unfinished if not finished(end)]
        if not unfinished:
            return server, client
    raise AssertionError(f"no handshake within {ROUNDS_MAX} rounds")


def finished(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def der(identity: Identity) -> bytes:
    return ssl.PEM_cert_to_DER_cert(identity.public.certificate)
