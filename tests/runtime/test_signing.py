"""Signatures of replicas that get other keys."""

from dataclasses import replace

import pytest

from quorate.core.cluster import Cluster
from quorate.crypto.identity import Identity, is_signed
from quorate.protocol.ordering.placement import GroupKind
from quorate.runtime.local import make_local_cluster
from quorate.runtime.signing import ClusterNotary, ClusterSigner

LOCAL = make_local_cluster()
FIRST, FORMER = LOCAL.identities["r0"], LOCAL.identities["r1"]
RENEWED = Identity.generate("r1")


def renewed() -> Cluster:
    """The cluster after a command gave another key to its replica 1."""
    (first, second, *others) = LOCAL.cluster.replicas
    changed = replace(
        second,
        sign_key=RENEWED.public.sign_key,
        mac_key=RENEWED.public.mac_key,
        certificate=RENEWED.public.certificate,
    )
    return replace(LOCAL.cluster, replicas=(first, changed, *others), revision=1)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["by a command", "in its file"])
def test_the_last_key_counts_and_the_one_before_is_known_as_such(is_ahead: bool) -> None:
    """A file may be ahead of the commands that are carried out, which say how it was before."""
    files = [LOCAL.cluster, renewed()]
    begun, heard = reversed(files) if is_ahead else files
    signer, notary = ClusterSigner(begun, FIRST), ClusterNotary(begun, FIRST, GroupKind.BYZANTINE)
    signer.adopt(heard)
    notary.adopt(heard)

    by_former = ClusterSigner(LOCAL.cluster, FORMER).sign(b"data")
    by_renewed = ClusterSigner(renewed(), RENEWED).sign(b"data")

    assert signer.is_signed_by(1, b"data", by_renewed)
    assert not signer.is_signed_by(1, b"data", by_former)
    assert signer.was_signed_by(1, b"data", by_former)
    assert not signer.was_signed_by(1, b"data", by_renewed)
    assert notary.cosigners[1].public_key == RENEWED.public.sign_key
    assert [each.public_key for each in notary.former[1]] == [FORMER.public.sign_key]
    assert not notary.is_replaced


def test_whoever_has_a_former_key_knows_that_it_is_replaced() -> None:
    notary = ClusterNotary(LOCAL.cluster, FORMER, GroupKind.BYZANTINE)
    notary.adopt(renewed())
    assert notary.is_replaced


def test_what_is_attested_is_signed_as_it_is_and_anybody_can_check_it() -> None:
    """No prefix stands before it: whoever has the key and the bytes needs nothing else."""
    attested = ClusterSigner(LOCAL.cluster, FORMER).attest(b"data")
    signer = ClusterSigner(LOCAL.cluster, FIRST)

    assert is_signed(FORMER.public.sign_key, b"data", attested)
    assert signer.is_attested_by(1, b"data", attested)
    assert not signer.is_attested_by(1, b"date", attested)
    assert not signer.is_attested_by(2, b"data", attested)
    assert not signer.is_attested_by(99, b"data", attested)
    assert not signer.is_signed_by(1, b"data", attested)


def test_what_was_attested_with_a_former_key_counts_no_more_and_is_known_as_such() -> None:
    attested = ClusterSigner(LOCAL.cluster, FORMER).attest(b"data")
    signer = ClusterSigner(LOCAL.cluster, FIRST)
    assert not signer.was_attested_by(1, b"data", attested)

    signer.adopt(renewed())

    assert not signer.is_attested_by(1, b"data", attested)
    assert signer.was_attested_by(1, b"data", attested)
    assert not signer.was_attested_by(1, b"date", attested)
