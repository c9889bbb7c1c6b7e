"""Validated topics: a signed batch is ordered only if its producer signed it for just this place.

Source: Kabis 2023, sections 3.1.2 and 3.3; DESIGN section 4 (SIDs).

Which batches are signed, their headers say (`core/header.py`). A basic batch goes the same way and
has no seal; a batch that says it is signed, and is not, is refused, also where no topic is
validated.

A replica looks at every seal that a publisher hands in, before it says that it received the batch,
stores it, or votes for it. What it takes on the word of others, f + 1 received: one of those is
correct, and looked. What is behind a seal, those look at who come to have it: a batch is available
only if we have it, or f + 1 say that they do. So the predicate of the consensus is that the seal
holds, whoever leads; that sequence numbers neither repeat nor leave gaps, and that payloads are
available, is so for every log (`lines.py`).

A seal holds if its key is the one that is pinned for the producer, the signature is right for the
line and the number, the body is what it names, and it has the tree of events that the contract asks
for. Whether that tree is right only those see who look at each event: auditors, and whoever proves
one.

Readers look at seals as well. There f + 1 replicas already say that the batch was ordered, so that
the key was the producer's then; it may have another one now.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.errors import RemoteProtocolError
from quorate.core.header import HEADER_BYTES, NO_ROOT, SEAL_BYTES, is_signed
from quorate.core.ids import MemberId, NodeId, Sequence, TopicId, member_of
from quorate.core.ordering import Line
from quorate.crypto.digests import seal_descriptor
from quorate.crypto.events import events_root
from quorate.crypto.sids import (
    SHEAF_MAX,
    Checked,
    Place,
    Seal,
    Sign,
    check_seal,
    sign_together,
    unsealed,
)
from quorate.protocol.topic import Topic


class Validation:
    """What it takes to look at the seals of one cluster's validated topics."""

    def __init__(
        self, cluster: str, topics: Iterable[Topic], keys: Mapping[MemberId, bytes]
    ) -> None:
        """`keys` are those that are pinned for clients."""
        self._cluster = cluster
        self._topics = _validated(topics)
        self._keys = dict(keys)
        self._checked = Checked()

    @staticmethod
    def of(cluster: Cluster, topics: Iterable[Topic]) -> "Validation":
        return Validation(cluster.full_name, topics, _keys(cluster))

    def adopt(self, cluster: Cluster, topics: Iterable[Topic]) -> None:
        """These are the clients and topics from now on."""
        self._topics, self._keys = _validated(topics), _keys(cluster)

    def covers(self, topic: TopicId) -> bool:
        return topic in self._topics

    def check_seals(self, line: Line, first: Sequence, seals: Seq[bytes]) -> None:
        """The producer of this line signed these batches, or `RemoteProtocolError`."""
        contract = self._topics[line.topic].contract
        pinned = self._keys.get(member_of(line.publisher))
        place = self.place(line)
        for sequence, encoded in enumerate(seals, first):
            seal = Seal.decode(encoded)
            if seal.public_key != pinned:
                raise RemoteProtocolError(
                    f"batch {sequence} on '{place.topic}' has another key than client "
                    f"{place.producer}"
                )
            if seal.has_event_proofs is not contract.event_proofs:
                has = "a tree of events" if seal.has_event_proofs else "no tree of events"
                raise RemoteProtocolError(
                    f"batch {sequence} of client {place.producer} has {has}, and "
                    f"event_proofs of '{place.topic}' is {str(contract.event_proofs).lower()}"
                )
            check_seal(place, sequence, seal, self._checked)

    def check_batches(
        self, line: Line, first: Sequence, payloads: Seq[bytes], descriptors: Seq[bytes]
    ) -> None:
        """The producer signed what says that it is signed.

        What is behind a seal is what it names: payloads are looked at wherever they come to one
        that they may be ordered for.
        """
        for sequence, (payload, described) in enumerate(
            zip(payloads, descriptors, strict=True), first
        ):
            if not is_signed(described):
                continue
            if line.topic not in self._topics:
                raise RemoteProtocolError("a signed batch, on a topic that is not validated")
            seal = payload[:SEAL_BYTES]
            self.check_seals(line, sequence, [seal])
            if seal_descriptor(seal) != described:
                raise RemoteProtocolError("a signed batch whose body is not what its seal names")

    def check_ordered(self, line: Line, sequence: Sequence, payload: bytes) -> Seal:
        """The seal of a signed batch that was ordered, and whose body it names."""
        seal = Seal.decode(payload)
        check_seal(self.place(line), sequence, seal, self._checked)
        return seal

    def place(self, line: Line) -> Place:
        return Place.of(
            self._cluster, self._topics[line.topic].name, line.partition, line.publisher
        )


def _keys(cluster: Cluster) -> dict[MemberId, bytes]:
    return {client.number: client.sign_key for client in cluster.clients}


def _validated(topics: Iterable[Topic]) -> dict[TopicId, Topic]:
    return {topic.id: topic for topic in topics if topic.contract.validated}


class Sealing:
    """A batch that is signed soon, together with others."""

    __slots__ = ("body", "payload", "place", "seal", "sequence")

    def __init__(self, place: Place, sequence: Sequence, seal: Seal, body: bytes) -> None:
        self.place, self.sequence = place, sequence
        self.seal, self.body = seal, body
        # The batch as it travels and is stored, once it is signed.
        self.payload = b""


class Sealer:
    """Signs what one session of a producer publishes."""

    def __init__(
        self,
        cluster: str,
        public_key: bytes,
        sign: Sign,
        *,
        wall_us: Callable[[], int],
        salt: Callable[[Place, Sequence], bytes],
        sheaf_max: int = SHEAF_MAX,
    ) -> None:
        """`salt` draws 32 bytes that nobody can guess, for one batch.

        With a `sheaf_max` of 1, what a seal is does not depend on what else is published.
        """
        self._cluster, self._public_key, self._sign = cluster, public_key, sign
        self._wall_us, self._salt, self._sheaf_max = wall_us, salt, sheaf_max
        self._held: list[Sealing] = []

    def hold(
        self, topic: Topic, me: NodeId, partition: int, sequence: Sequence, payload: bytes
    ) -> Sealing:
        """Take a batch that `sign_held` will seal."""
        salt, root = b"", NO_ROOT
        place = Place.of(self._cluster, topic.name, partition, me)
        if topic.contract.event_proofs:
            salt = self._salt(place, sequence)
            root = events_root(salt, Batch(payload).events())
        seal = unsealed(
            payload, salt, time_us=self._wall_us(), root=root, public_key=self._public_key
        )
        self._held.append(Sealing(place, sequence, seal, salt + payload[HEADER_BYTES:]))
        return self._held[-1]

    def sign_held(self) -> list[Sealing]:
        """Seal all that is held, of whatever lines, with as few signatures as possible."""
        held, self._held = self._held, []
        for start in range(0, len(held), self._sheaf_max):
            sheaf = held[start : start + self._sheaf_max]
            seals = sign_together([(s.place, s.sequence, s.seal) for s in sheaf], self._sign)
            for sealing, seal in zip(sheaf, seals, strict=True):
                sealing.seal, sealing.payload = seal, seal.encode() + sealing.body
        return held
