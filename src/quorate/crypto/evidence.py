"""Evidence: signed statements of one party that contradict each other, or what they are about.

Source: DESIGN sections 3 and 6; Kabis 2023, sections 3.3 and 3.4.

Whoever holds a piece of evidence can show anybody who has the cluster's keys that a party did what
no correct one does. It needs no cluster, no log and nobody's word. There are four kinds:

- `TwoSeals`: a producer signed two different batches under one number of one line;
- `Malformed`: a producer signed a batch whose body does not decode into what its header says
  (`core.batch.Batch`), or whose tree of events is not the one in its seal. Replicas do not look at
  bodies, so that readers and auditors find it. Nobody signed a basic batch, so that there is no
  evidence of a malformed one;
- `TwoHeads`: a replica cosigned two heads of one log, of one size and with different roots. The
  log is one that tolerates liars: in any other, one liar makes correct replicas sign what it says;
- `FalseReceipt`: a store signed that it keeps a batch, and then that it does not have it, although
  by its own words retention has not taken it.

That somebody is silent, slow or gone proves nothing, and neither do two heads of different sizes:
there is no evidence of such things here.

A receipt names its batches by the chain of the last. So evidence has the chain before the batch
that was refused, and the digests behind it: they lead to the chain in the receipt, and no others
do.

Rules:
- evidence has one way to be written as text, and any other is refused. Its first line says which
  version it is of, so that the numbers and headers in it mean one thing;
- it is about the cluster whose keys one has; names of topics and numbers of members are part of
  what was signed;
- keys that a member had before may be among those that one knows: what it signed with them, it
  signed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from quorate.core.cluster import Cluster, other_cluster
from quorate.core.errors import LocalProtocolError, RemoteProtocolError
from quorate.core.header import SEAL_BYTES
from quorate.core.header import is_signed as is_signed_batch
from quorate.core.ids import DIGEST_BYTES, MEMBER_ID_MAX, SESSION_MAX, MemberId
from quorate.core.limits import RUN_BATCHES_MAX
from quorate.core.ordering import EVIDENCE_CHARACTERS_MAX
from quorate.crypto.checkpoint import SIZE_MAX, TIME_S_MAX, Checkpoint, Head, cosigned_bytes
from quorate.crypto.digests import digest, link
from quorate.crypto.events import check_events
from quorate.crypto.identity import SIGNATURE_BYTES, is_signed
from quorate.crypto.receipts import Receipt, Refusal
from quorate.crypto.sids import Place, Seal, body_of, check_seal, sid

VERSION = 2
# The key of the kind.
_FORMAT = f"quorate evidence v{VERSION}"
# How evidence of any version begins; that of the first had no version.
_BEGINNING = re.compile(r'\{\s*"(?:evidence|quorate evidence v([0-9]{1,9}))": ')
# Of the batch in evidence, so that its text stays within its bound.
BODY_BYTES_MAX = 750 * 1000
_EXTENSIONS_MAX = 16

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Line = Annotated[str, Meta(min_length=1, max_length=1024)]
_Partition = Annotated[int, Meta(ge=0, le=2**16 - 1)]
_Member = Annotated[int, Meta(ge=0, le=MEMBER_ID_MAX)]
_Session = Annotated[int, Meta(ge=0, le=SESSION_MAX)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Batches = Annotated[int, Meta(ge=1, le=RUN_BATCHES_MAX)]
_Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
_Seal = Annotated[bytes, Meta(min_length=SEAL_BYTES, max_length=SEAL_BYTES)]
_Body = Annotated[bytes, Meta(max_length=BODY_BYTES_MAX)]
_Signature = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
_Digests = Annotated[tuple[_Digest, ...], Meta(max_length=RUN_BATCHES_MAX)]
_Extensions = Annotated[tuple[_Line, ...], Meta(max_length=_EXTENSIONS_MAX)]


class _Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field=_FORMAT):
    cluster: _Name


class _AboutBatch(_Evidence, frozen=True):
    topic: _Name
    partition: _Partition
    producer: _Member
    session: _Session
    sequence: _Number

    @property
    def place(self) -> Place:
        return Place(self.cluster, self.topic, self.partition, self.producer, self.session)


class TwoSeals(_AboutBatch, frozen=True, tag="two-seals"):
    """What a producer signed for one number of one line, twice; the seals are in order."""

    one: _Seal
    other: _Seal

    @staticmethod
    def of(place: Place, sequence: int, one: Seal, other: Seal) -> "TwoSeals":
        return TwoSeals(*place, sequence, *sorted((one.encode(), other.encode())))


class Malformed(_AboutBatch, frozen=True, tag="malformed"):
    """A seal, and the body under it, which is not what header and seal say."""

    seal: _Seal
    body: _Body

    @staticmethod
    def of(place: Place, sequence: int, payload: bytes) -> "Malformed | None":
        """Nothing if nobody signed the batch, or if it is too large for evidence."""
        seal, body = payload[:SEAL_BYTES], body_of(payload)
        has_room = is_signed_batch(payload) and len(body) <= BODY_BYTES_MAX
        return Malformed(*place, sequence, seal, body) if has_room else None


class SignedHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a head in which two of them differ, and one cosignature of it."""

    root: _Digest
    extensions: _Extensions
    time_s: Annotated[int, Meta(ge=0, le=TIME_S_MAX)]
    signature: _Signature


class TwoHeads(_Evidence, frozen=True, tag="two-heads"):
    """What a replica signed as the head of one log at one size, twice; in the order of roots."""

    replica: _Member
    origin: _Line
    size: Annotated[int, Meta(ge=0, le=SIZE_MAX)]
    one: SignedHead
    other: SignedHead

    def head(self, signed: SignedHead) -> Head:
        return Head(self.origin, self.size, signed.root, signed.extensions)


class FalseReceipt(_Evidence, frozen=True, tag="false-receipt"):
    """A store's receipt, and its refusal of one of the batches that the receipt covers.

    `before` is the line's chain before the batch that was refused, and `behind` are the digests of
    those after it that the receipt covers.
    """

    store: _Member
    topic: _Name
    partition: _Partition
    producer: _Member
    session: _Session
    first: _Number
    batches: _Batches
    chain: _Digest
    receipt_signature: _Signature
    sequence: _Number
    digest: _Digest
    offset: _Number
    start: _Number
    time_us: _Time
    refusal_signature: _Signature
    before: _Digest
    behind: _Digests

    @staticmethod
    def of(
        store: MemberId,
        receipt: Receipt,
        receipt_signature: bytes,
        refusal: Refusal,
        refusal_signature: bytes,
        before: bytes,
        behind: tuple[bytes, ...],
    ) -> "FalseReceipt":
        """Both statements are of the same place, or the evidence does not hold."""
        _, topic, partition, producer, session = receipt.place
        _, sequence, digest, offset, start, time_us = refusal
        return FalseReceipt(
            receipt.place.cluster, store, topic, partition, producer, session, receipt.first,
            receipt.batches, receipt.chain, receipt_signature, sequence, digest, offset, start,
            time_us, refusal_signature, before, behind,
        )  # fmt: skip

    @property
    def place(self) -> Place:
        return Place(self.cluster, self.topic, self.partition, self.producer, self.session)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.place, self.first, self.batches, self.chain)

    @property
    def refusal(self) -> Refusal:
        return Refusal(
            self.place, self.sequence, self.digest, self.offset, self.start, self.time_us
        )


Evidence: TypeAlias = TwoSeals | Malformed | TwoHeads | FalseReceipt

_decoder: msgspec.json.Decoder[Evidence] = msgspec.json.Decoder(Evidence, strict=True)


@dataclass(frozen=True, slots=True)
class Keys:
    """Whose signatures count: the names of a cluster's members, and all keys known of each."""

    cluster: str
    names: Mapping[MemberId, str]
    keys: Mapping[MemberId, tuple[bytes, ...]]

    @staticmethod
    def of(cluster: Cluster, *others: Cluster) -> "Keys":
        """Those of a cluster file, and of what else is known of the cluster at other times."""
        names: dict[MemberId, str] = {}
        keys: dict[MemberId, tuple[bytes, ...]] = {}
        for each in (cluster, *others):
            if each.identity != cluster.identity:
                raise LocalProtocolError(
                    f"the keys of two clusters, {cluster.full_name} and {each.full_name}"
                )
            for member in each.members:
                names.setdefault(member.number, member.name)
                known = keys.get(member.number, ())
                if member.sign_key not in known:
                    keys[member.number] = (*known, member.sign_key)
        return Keys(cluster.full_name, names, keys)


@dataclass(frozen=True, slots=True)
class Proved:
    """What a piece of evidence proves: of whom, and what, in a sentence."""

    kind: str
    party: str
    number: MemberId
    name: str
    sentence: str


def render(evidence: Evidence) -> str:
    """The evidence as text: JSON, in the one way in which it is written."""
    encoded = msgspec.json.encode(evidence)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def parse(text: str) -> Evidence:
    """Read what `render` wrote. Whether it proves anything, `verify_evidence` says."""
    # Whoever sends a long text must not make us copy it first.
    if len(text) > EVIDENCE_CHARACTERS_MAX:
        raise RemoteProtocolError(
            f"evidence of {len(text)} characters; allowed are {EVIDENCE_CHARACTERS_MAX}"
        )
    other = _BEGINNING.match(text)
    version = int(other[1] or 1) if other else VERSION
    if version != VERSION:
        raise RemoteProtocolError(
            f"evidence of version {version}, and this program reads version {VERSION}: verify it "
            "with the version of Quorate that made it"
        )
    try:
        evidence = _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise RemoteProtocolError(f"evidence that cannot be read: {error}") from None
    if render(evidence) != text:
        raise RemoteProtocolError("evidence that is not written as it has to be")
    return evidence


def verify_evidence(evidence: Evidence, keys: Keys) -> Proved:
    """What this evidence proves to whoever has these keys, or `RemoteProtocolError`."""
    if evidence.cluster != keys.cluster:
        raise RemoteProtocolError(other_cluster("evidence", evidence.cluster, keys.cluster))
    party, judge = _JUDGES[type(evidence)]
    what = judge(evidence, keys)
    number: MemberId = getattr(evidence, party)
    name, kind = keys.names[number], str(evidence.__struct_config__.tag)
    return Proved(kind, party, number, name, f"{name} {what}")


def heads_in_conflict(
    cluster: str, one: Checkpoint, other: Checkpoint, replicas: Mapping[str, MemberId]
) -> list[TwoHeads]:
    """Evidence against all who signed both of these checkpoints, if they contradict each other.

    `replicas` has the numbers of the replicas by their names.
    """
    same = (one.head.origin, one.head.size) == (other.head.origin, other.head.size)
    if not same or one.head.root == other.head.root or not _bears_liars(one.head.origin):
        return []
    first, second = sorted((one, other), key=lambda checkpoint: checkpoint.head.root)
    theirs = {cosignature.name: cosignature for cosignature in second.cosignatures}
    return [
        TwoHeads(
            cluster,
            replicas[mine.name],
            one.head.origin,
            one.head.size,
            SignedHead(first.head.root, first.head.extensions, mine.time_s, mine.signature),
            SignedHead(
                second.head.root,
                second.head.extensions,
                theirs[mine.name].time_s,
                theirs[mine.name].signature,
            ),
        )
        for mine in first.cosignatures
        if mine.name in theirs and mine.name in replicas
    ]


# What the party did of which a piece of evidence is, if it proves that


def _two_seals(evidence: TwoSeals, keys: Keys) -> str:
    if not evidence.one < evidence.other:
        raise RemoteProtocolError("evidence with two seals that are not different and in order")
    place, sequence = evidence.place, evidence.sequence
    seals = [Seal.decode(encoded) for encoded in (evidence.one, evidence.other)]
    one, other = (sid(place, sequence, seal) for seal in seals)
    if one == other:
        # Whoever has a key can sign the same in many ways.
        raise RemoteProtocolError("evidence with two signatures of the same, which is no lie")
    for seal in seals:
        _check_sealed(keys, place, sequence, seal)
    return (
        f"signed two different batches as number {sequence} of session {evidence.session} on "
        f"partition {evidence.partition} of {evidence.topic!a}"
    )


def _malformed(evidence: Malformed, keys: Keys) -> str:
    place, sequence, payload = evidence.place, evidence.sequence, evidence.seal + evidence.body
    seal = Seal.decode(payload)
    _check_sealed(keys, place, sequence, seal)
    if digest(evidence.body) != seal.digest:
        raise RemoteProtocolError("a seal, and a body that is not the one that it names")
    try:
        check_events(payload)
    except RemoteProtocolError as error:
        return (
            f"signed {error}, as number {sequence} of session {evidence.session} on partition "
            f"{evidence.partition} of {evidence.topic!a}"
        )
    raise RemoteProtocolError("a seal that is true of its batch, which is no lie")


def _check_sealed(keys: Keys, place: Place, sequence: int, seal: Seal) -> None:
    """The producer of this place signed this, with a key that is known to be its own."""
    if seal.public_key not in keys.keys.get(place.producer, ()):
        raise RemoteProtocolError(
            f"a seal with a key that is none of client {place.producer}, as far as known"
        )
    check_seal(place, sequence, seal)


def _two_heads(evidence: TwoHeads, keys: Keys) -> str:
    if not evidence.one.root < evidence.other.root:
        raise RemoteProtocolError("evidence with two roots that are not different and in order")
    if not evidence.origin.startswith(f"quorate/{evidence.cluster}/"):
        raise RemoteProtocolError(
            f"evidence about the log {evidence.origin!a}, which is none of the cluster "
            f"{evidence.cluster!a}"
        )
    if not _bears_liars(evidence.origin):
        raise RemoteProtocolError(
            f"evidence about the log {evidence.origin!a}, which tolerates crashes only: one liar "
            "makes others sign what it says"
        )
    for signed in (evidence.one, evidence.other):
        try:
            data = cosigned_bytes(evidence.head(signed), signed.time_s)
        except LocalProtocolError as error:
            raise RemoteProtocolError(str(error)) from None
        _check_signed(keys, evidence.replica, data, signed.signature, "a head")
    return (
        f"signed two heads of the log {evidence.origin!a} with {evidence.size} batches: "
        f"{evidence.one.root.hex()} and {evidence.other.root.hex()}"
    )


def _bears_liars(origin: str) -> bool:
    """Whether the log of this name is ordered by replicas of which some may lie."""
    return origin.endswith("/byzantine")


def _false_receipt(evidence: FalseReceipt, keys: Keys) -> str:
    sequence, end = evidence.sequence, evidence.first + evidence.batches
    if not evidence.first <= sequence < end:
        raise RemoteProtocolError(
            f"a receipt of batches {evidence.first} to {end - 1}, and a refusal of batch {sequence}"
        )
    if len(evidence.behind) != end - 1 - sequence:
        raise RemoteProtocolError(
            f"{len(evidence.behind)} digests, where {end - 1 - sequence} lead from batch "
            f"{sequence} to the end of the receipt"
        )
    if reduce(link, (evidence.digest, *evidence.behind), evidence.before) != evidence.chain:
        raise RemoteProtocolError(
            f"a receipt of another batch {sequence} than the one that was refused"
        )
    if evidence.offset < evidence.start:
        raise RemoteProtocolError(
            f"a refusal of offset {evidence.offset}, which retention has taken: the store keeps "
            f"{evidence.start} and later"
        )
    receipt, refusal = evidence.receipt.encode(), evidence.refusal.encode()
    _check_signed(keys, evidence.store, receipt, evidence.receipt_signature, "a receipt")
    _check_signed(keys, evidence.store, refusal, evidence.refusal_signature, "a refusal")
    producer = keys.names.get(evidence.producer, f"client {evidence.producer}")
    return (
        f"signed that it stores batch {sequence} of {producer}, session {evidence.session}, on "
        f"partition {evidence.partition} of {evidence.topic!a}, and then that it does not have it, "
        f"at offset {evidence.offset}, although it keeps {evidence.start} and later"
    )


def _check_signed(keys: Keys, member: MemberId, data: bytes, signature: bytes, what: str) -> None:
    known = keys.keys.get(member, ())
    if not any(is_signed(key, data, signature) for key in known):
        raise RemoteProtocolError(f"{what} that replica {member} did not sign with any known key")


# By the kind of evidence: the field with the party that it is against, and what decides on it.
_JUDGES: dict[type, tuple[str, Callable[[Any, Keys], str]]] = {
    TwoSeals: ("producer", _two_seals),
    Malformed: ("producer", _malformed),
    TwoHeads: ("replica", _two_heads),
    FalseReceipt: ("store", _false_receipt),
}
