"""Proofs: a file that convinces a third party, offline, of what was published and where it stands.

Source: DESIGN section 6; RFC 6962 and 9162 (inclusion); C2SP tlog-checkpoint and tlog-cosignature.

A proof is a JSON object in ASCII. It has the place of a batch (cluster, topic, partition, offset of
its first event, producer and session, sequence, the time of the log), its seal (`sids.py`), what
was published (the body behind the seal, or one event with its own salt and its way to the root that
the seal names), and the way from the batch's leaf (`leaves.py`) to the root of a checkpoint, with
that checkpoint.

A basic batch has no seal. Its proof has the header (`core/header.py`) in place of the seal, and
always the body. It shows that a quorum ordered this batch as its producer's, and that the producer
did not sign it: the leaf covers the header, and the header says which of both a batch is.

The keys come from a file that whoever verifies has from elsewhere, and never from the proof. What
is verified, in this order:

1. The file is a proof, of this version, written in the one way in which a proof is written.
2. It is of the cluster that the keys are of.
3. The seal's own key signed the SID of this batch: cluster, topic, partition, producer, session,
   sequence, header, digest, time. Without a seal, the header is that of a basic batch.
4. What was published is what the seal names: the body has its digest, or the event leads to the
   root of the tree over as many events as the header says. A basic body is part of the leaf.
5. The checkpoint is one of the cluster's Byzantine order log, and so many of the replicas that are
   pinned signed it as any two such sets have a correct one in common; it has their lines, and no
   other ones.
6. The leaf that follows from the place and the seal, or from the place, the header and the body,
   leads to the checkpoint's root.
7. The key of the seal is the one that is pinned for the producer. If it is not, the file knows
   another key of the producer's, or none: then it was the producer's by the word of those who
   signed the checkpoint, since replicas compare it before they order a batch. The verdict says
   which (docs/decisions/0018-proofs.md). Without a seal, the verdict says that nobody signed.

Rules:
- no byte of a proof can be changed without being noticed. That is why there is one way to write
  it, and why it has just as many cosignatures as it takes: a line that is one too many could become
  that of a stranger, which a reader of checkpoints passes over;
- a proof of one event has neither the salt of the batch nor anything of the other events but
  hashes that are salted;
- a SID has the name of the topic, and a leaf the number that follows from it, of 32 bits. So what
  the proof of a basic batch shows of its topic is this number, and the verdict says so: names that
  share it can be found;
- that the body is what its header says (`core.batch.Batch`), and that the tree of events is that of
  the batch, the producer vouches for alone. A batch that is malformed takes its offsets all the
  same, so that its proof holds. Whoever has the whole batch looks (`remarks` of the verdict), and
  so does whoever makes a proof of one event.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from quorate.core.batch import Batch
from quorate.core.cluster import Cluster, other_cluster
from quorate.core.errors import ConfigError, LocalProtocolError, QuorateError, RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import HEADER_BYTES, SALT_BYTES, SEAL_BYTES, header_of, is_signed
from quorate.core.ids import MEMBER_ID_MAX, SESSION_MAX, MemberId, NodeId, node_of, topic_id
from quorate.core.limits import BATCH_EVENTS_MAX, SEALED_BYTES_MAX
from quorate.core.ordering import PATH_HASHES_MAX
from quorate.core.quorum import Quorum
from quorate.crypto.checkpoint import (
    NOTE_BYTES_MAX,
    Checkpoint,
    Cosigner,
    OtherKeysError,
    log_origin,
    read,
    render,
)
from quorate.crypto.digests import batch_digest, digest, seal_digest
from quorate.crypto.events import check_events, event_leaf, event_leaves, event_salt
from quorate.crypto.leaves import LEAF, LEAF_VERSION
from quorate.crypto.merkle import (
    HASH_BYTES,
    Hash,
    check_inclusion,
    inclusion_in_runs,
    leaf_hash,
)
from quorate.crypto.sids import Place, Seal, check_seal

VERSION = 2
FORMAT: Final = "quorate proof v2"
# The group of replicas that orders validated topics.
GROUP = "byzantine"
NAME_CHARACTERS_MAX = 1024
# In base64 a body is a third longer.
PROOF_BYTES_MAX = 2 * SEALED_BYTES_MAX

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
_Hash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_Header = Annotated[bytes, Meta(min_length=HEADER_BYTES, max_length=HEADER_BYTES)]
_Seal = Annotated[bytes, Meta(min_length=SEAL_BYTES, max_length=SEAL_BYTES)]
_Path = Annotated[list[_Hash], Meta(max_length=PATH_HASHES_MAX)]


class ProofError(QuorateError):
    """A proof that does not hold; `step` is the first one that fails, as numbered above."""

    def __init__(self, step: int, sentence: str) -> None:
        super().__init__(f"step {step} of {STEPS} does not hold: {sentence}")
        self.step = step


class EventProof(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """One event of a batch, with its own salt, and how it leads to the root in the seal."""

    index: Annotated[int, Meta(ge=0, lt=BATCH_EVENTS_MAX)]
    salt: Annotated[bytes, Meta(min_length=SALT_BYTES, max_length=SALT_BYTES)]
    key: bytes | None = None
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_us: _Time
    urgent: bool
    path: _Path

    @staticmethod
    def of(payload: bytes, index: int) -> "EventProof":
        """Of one event of a signed batch that has a salt."""
        salt, events = payload[SEAL_BYTES:][:SALT_BYTES], Batch(payload).events()
        if not 0 <= index < len(events):
            raise LocalProtocolError(
                f"there is no event {index} in this batch; it has events 0 to {len(events) - 1}"
            )
        event, leaves = events[index], event_leaves(salt, events)
        return EventProof(
            index=index,
            salt=event_salt(salt, index),
            key=event.key,
            value=event.value,
            headers=list(event.headers),
            timestamp_us=event.timestamp_us,
            urgent=event.urgent,
            path=inclusion_in_runs(index, leaves, [range(len(leaves))], len(leaves), []),
        )

    @property
    def event(self) -> Event:
        return Event(self.key, self.value, tuple(self.headers), self.timestamp_us, self.urgent)


class Proof(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """What the file says, whether it holds or not.

    It has either a seal or a header, and either a body or an event; with a header it has a body.
    """

    format: Literal["quorate proof v2"]
    cluster: _Name
    topic: _Name
    partition: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    # That of the batch's first event.
    offset: _Number
    producer: Annotated[int, Meta(ge=0, le=MEMBER_ID_MAX)]
    session: Annotated[int, Meta(ge=0, le=SESSION_MAX)]
    sequence: _Number
    time_us: _Time
    seal: _Seal | None = None
    header: _Header | None = None
    body: Annotated[bytes, Meta(max_length=SEALED_BYTES_MAX)] | None = None
    event: EventProof | None = None
    leaf: _Number
    tree_size: _Number
    path: _Path
    checkpoint: Annotated[str, Meta(max_length=NOTE_BYTES_MAX)]

    @staticmethod
    def of(
        place: Place,
        offset: int,
        sequence: int,
        time_us: int,
        payload: bytes,
        *,
        leaf: int,
        tree_size: int,
        path: list[Hash],
        checkpoint: str,
    ) -> "Proof":
        """That of a whole batch."""
        has_seal = is_signed(payload)
        begin = SEAL_BYTES if has_seal else HEADER_BYTES
        return Proof(
            format=FORMAT,
            cluster=place.cluster,
            topic=place.topic,
            partition=place.partition,
            offset=offset,
            producer=place.producer,
            session=place.session,
            sequence=sequence,
            time_us=time_us,
            seal=payload[:begin] if has_seal else None,
            header=None if has_seal else payload[:begin],
            body=payload[begin:],
            leaf=leaf,
            tree_size=tree_size,
            path=path,
            checkpoint=checkpoint,
        )

    @staticmethod
    def parse(data: bytes) -> "Proof":
        """Read what `render` wrote, and nothing else (step 1)."""
        if len(data) > PROOF_BYTES_MAX:
            raise ProofError(1, f"it has more than {PROOF_BYTES_MAX} bytes")
        other = _FORMAT.match(data)
        if other and int(other[1]) != VERSION:
            raise ProofError(
                1,
                f"it is a proof of version {int(other[1])}, and this program reads version "
                f"{VERSION}: have it made again with `quorate prove`, or verify it with the "
                "version of Quorate that made it",
            )
        try:
            proof = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProofError(1, f"it is no proof: {error}") from None
        if (proof.body is None) is (proof.event is None):
            raise ProofError(1, "it has to have either a body or an event")
        if (proof.seal is None) is (proof.header is None):
            raise ProofError(1, "it has to have either a seal or a header")
        if proof.seal is None and proof.body is None:
            raise ProofError(1, "an event is proved alone under a seal only, and it has none")
        if proof.render() != data:
            raise ProofError(
                1,
                "it is not written as a proof is, to the byte: the order of keys, spaces, numbers, "
                "letters and base64 have one way each",
            )
        return proof

    def render(self) -> bytes:
        """The file."""
        return (json.dumps(msgspec.to_builtins(self), indent=1) + "\n").encode()

    @property
    def publisher(self) -> NodeId:
        return node_of(self.producer, self.session)

    @property
    def place(self) -> Place:
        return Place(self.cluster, self.topic, self.partition, self.producer, self.session)

    @property
    def payload(self) -> bytes:
        """The whole batch, as far as the proof has it."""
        return (self.seal or self.header or b"") + (self.body or b"")


@dataclass(frozen=True, slots=True)
class Producer:
    """What a key file says of a client: a former one has no key there."""

    name: str
    key: bytes | None


@dataclass(frozen=True, slots=True)
class Keys:
    """What is pinned: who vouches for the order, how many of them it takes, and who publishes."""

    cluster: str
    cosigners: tuple[Cosigner, ...]
    needed: int
    producers: Mapping[MemberId, Producer]

    @staticmethod
    def of(cluster: Cluster) -> "Keys":
        """Those of a cluster file."""
        n, f = cluster.orderers, cluster.f
        if n < 3 * f + 1:
            raise ConfigError(
                f"cluster {cluster.name} has {n} replicas that order, and no validated topics: "
                f"with f = {f} these take {3 * f + 1}"
            )
        cosigners = [Cosigner(each.name, each.sign_key) for each in cluster.replicas[:n]]
        producers = {each.number: Producer(each.name, None) for each in cluster.formers}
        producers |= {each.number: Producer(each.name, each.sign_key) for each in cluster.clients}
        return Keys(
            cluster.full_name,
            tuple(cosigners),
            Quorum(n, f).intersecting,
            MappingProxyType(producers),
        )

    @property
    def origin(self) -> str:
        return log_origin(self.cluster, GROUP)


class Voucher(msgspec.Struct, frozen=True):
    """A replica that signed the checkpoint, and the time in its signature, which is the log's."""

    name: str
    time_s: int


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a proof proves. There is none of a proof that does not hold."""

    cluster: str
    topic: str
    partition: int
    # That of the event, or of the first event of the batch.
    offset: int
    producer: int
    # As the key file calls it; empty if it knows no such client.
    producer_name: str
    # Whether the producer signed. Otherwise the vouchers say that the producer published it.
    is_signed: bool
    # Whether the key file pins the key that signed. Otherwise the vouchers say that it was the
    # producer's.
    is_key_pinned: bool
    public_key: bytes | None
    session: int
    sequence: int
    # When the producer signed, by its own clock, and when the batch was ordered.
    signed_us: int | None
    ordered_us: int
    # Of the whole batch: it takes as many offsets.
    events: int
    # Either the batch with its header or seal, or one event and which one of the batch it is.
    batch: bytes | None
    event: Event | None
    event_index: int | None
    leaf: int
    tree_size: int
    root: bytes
    vouchers: tuple[Voucher, ...]
    # What holds less than one might think, in sentences.
    remarks: tuple[str, ...]


def verify(proof: Proof, keys: Keys) -> Verdict:
    """What this proof proves to whoever pins these keys, or `ProofError`."""
    _check_cluster(proof, keys)
    seal = _checked_seal(proof)
    if seal is not None:
        _check_content(proof, seal)
    checkpoint = _checked_checkpoint(proof, keys)
    _check_position(proof, checkpoint)
    return _verdict(proof, seal, checkpoint, keys)


def verify_bytes(data: bytes, keys: Keys) -> Verdict:
    """The same of a proof file."""
    return verify(Proof.parse(data), keys)


def leaf_of(proof: Proof) -> Hash:
    """The leaf of the batch that a proof is about."""
    content = batch_digest(proof.payload) if proof.seal is None else seal_digest(proof.seal)
    return leaf_hash(
        LEAF.pack(
            LEAF_VERSION, topic_id(proof.topic), proof.partition, proof.offset, proof.publisher,
            proof.sequence, proof.time_us, content,
        )
    )  # fmt: skip


def enough_of(checkpoint: str, keys: Keys) -> tuple[str, int]:
    """This checkpoint with as many cosignatures as it takes, and its size.

    `RemoteProtocolError` if it does not have so many.
    """
    known = read(checkpoint, keys.cosigners, keys.needed)
    if known.head.origin != keys.origin:
        raise RemoteProtocolError(f"a checkpoint of {known.head.origin!r}, not of {keys.origin!r}")
    chosen = known.cosignatures[: keys.needed]
    return render(known.head, chosen, keys.cosigners), known.head.size


# Steps


def _check_cluster(proof: Proof, keys: Keys) -> None:
    if proof.cluster != keys.cluster:
        raise ProofError(2, other_cluster("it is", proof.cluster, keys.cluster))


def _checked_seal(proof: Proof) -> Seal | None:
    try:
        if proof.seal is None:
            if header_of(proof.payload).is_signed:
                raise RemoteProtocolError("the header of a signed batch without its seal")
            return None
        seal = Seal.decode(proof.seal)
        check_seal(proof.place, proof.sequence, seal)
    except RemoteProtocolError as error:
        raise ProofError(3, str(error)) from None
    return seal


def _check_content(proof: Proof, seal: Seal) -> None:
    if proof.event is not None:
        _check_event(proof.event, seal)
    elif digest(proof.body or b"") != seal.digest:
        raise ProofError(4, "the body is not what the producer signed")


def _check_event(found: EventProof, seal: Seal) -> None:
    if not seal.has_event_proofs:
        raise ProofError(4, "the producer signed no tree of events, so that none is proved alone")
    leaf = event_leaf(found.salt, found.event)
    try:
        check_inclusion(leaf, found.index, seal.events, found.path, seal.root)
    except RemoteProtocolError as error:
        raise ProofError(4, f"the event is not the one that the producer signed: {error}") from None


def _checked_checkpoint(proof: Proof, keys: Keys) -> Checkpoint:
    try:
        checkpoint = read(proof.checkpoint, keys.cosigners, keys.needed)
    except OtherKeysError as error:
        raise ProofError(
            5,
            f"{error}; if replicas got other keys since, the cluster file of that time has theirs",
        ) from None
    except RemoteProtocolError as error:
        raise ProofError(5, str(error)) from None
    head, cosignatures = checkpoint.head, checkpoint.cosignatures
    if head.origin != keys.origin:
        raise ProofError(5, f"the checkpoint is of {head.origin!r}, not of {keys.origin!r}")
    is_exact = len(cosignatures) == keys.needed
    if not is_exact or render(head, cosignatures, keys.cosigners) != proof.checkpoint:
        raise ProofError(
            5,
            f"the checkpoint has other lines than the cosignatures of {keys.needed} replicas whose "
            "keys are pinned, one each and in the order of their names",
        )
    return checkpoint


def _check_position(proof: Proof, checkpoint: Checkpoint) -> None:
    head = checkpoint.head
    if proof.tree_size != head.size:
        raise ProofError(
            6, f"it says a tree of {proof.tree_size} leaves, and the checkpoint {head.size}"
        )
    try:
        check_inclusion(leaf_of(proof), proof.leaf, head.size, proof.path, head.root)
    except RemoteProtocolError as error:
        raise ProofError(6, f"the batch does not stand there: {error}") from None


# The verdict


def _verdict(proof: Proof, seal: Seal | None, checkpoint: Checkpoint, keys: Keys) -> Verdict:
    producer = keys.producers.get(proof.producer)
    pinned = None if producer is None else producer.key
    is_pinned = seal is not None and seal.public_key == pinned
    found = proof.event
    return Verdict(
        cluster=proof.cluster,
        topic=proof.topic,
        partition=proof.partition,
        offset=proof.offset if found is None else proof.offset + found.index,
        producer=proof.producer,
        producer_name="" if producer is None else producer.name,
        is_signed=seal is not None,
        is_key_pinned=is_pinned,
        public_key=None if seal is None else seal.public_key,
        session=proof.session,
        sequence=proof.sequence,
        signed_us=None if seal is None else seal.time_us,
        ordered_us=proof.time_us,
        events=header_of(proof.payload).events,
        batch=None if proof.body is None else proof.payload,
        event=None if found is None else found.event,
        event_index=None if found is None else found.index,
        leaf=proof.leaf,
        tree_size=checkpoint.head.size,
        root=checkpoint.head.root,
        vouchers=tuple(Voucher(each.name, each.time_s) for each in checkpoint.cosignatures),
        remarks=(
            *([] if is_pinned else [_whose(proof, producer)]),
            *([] if proof.body is None else _what_is_wrong(proof.payload)),
        ),
    )


def _whose(proof: Proof, producer: Producer | None) -> str:
    if proof.seal is None:
        who = f"client {proof.producer}" if producer is None else producer.name
        return (
            f"{who} did not sign this batch: that {who} published it, the vouchers say, who "
            "ordered it as a basic batch; of the topic's name they signed 32 bits of its hash"
        )
    if producer is None:
        has = f"has no client {proof.producer}"
    elif producer.key is None:
        has = f"has no key of {producer.name}, who is a client no more"
    else:
        has = f"pins another key for {producer.name}"
    return (
        f"the key file {has}: that the key which signed was the producer's then, the vouchers say, "
        "who compared it before they ordered the batch, and not the file"
    )


def _what_is_wrong(payload: bytes) -> list[str]:
    try:
        Batch(payload)
    except RemoteProtocolError as error:
        return [f"the batch is malformed, so that readers deliver none of its events: {error}"]
    try:
        check_events(payload)
    except RemoteProtocolError as error:
        return [f"what the producer signed is {error}"]
    return []


STEPS = 7
# How a proof of any version begins.
_FORMAT = re.compile(rb'\{\n "format": "quorate proof v([0-9]{1,9})"')
_DECODER: msgspec.json.Decoder[Proof] = msgspec.json.Decoder(Proof)
