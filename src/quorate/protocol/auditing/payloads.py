"""The payloads of one partition, from every replica that has them, against what was agreed.

Source: DESIGN section 6 (audit); Kabis 2023, sections 3.3 and 3.4.

A ledger (`history.py`) has the descriptor of every batch, and who published it as which number. A
replica's payloads must have these descriptors and say the same of where they belong. What is right
is looked into once, whoever sent it: whether it is what its header says, and of a signed batch also
at its seal and its tree of events. What is wrong may still be signed: then its producer signed two
batches under one number, and both seals prove it.

Rules:
- a payload that is not there is nobody's lie: large ones are with few replicas, and retention takes
  old ones. Only what nobody has is missing, and only if fewer replicas than must have had it say
  that their retention took it, and nobody is left who did not answer;
- a batch that is malformed delivers nothing. If its producer signed it, that is evidence; of a
  basic batch it is a note, since nobody else can check who published it;
- a store that signed for a batch and does not have it is asked to sign that too. Both together
  prove what it did (`ordering/challenges.py`);
- whose key a seal has is known from the cluster as it is, as it began, and from the commands in
  between; where those are not all there, an unknown key is no finding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from quorate.core.batch import Batch
from quorate.core.cluster import Cluster
from quorate.core.control import CONTROL_TOPIC_ID, PutClient, decode_command
from quorate.core.errors import QuorateError, RemoteProtocolError
from quorate.core.header import SEAL_BYTES, is_signed
from quorate.core.ids import DIGEST_BYTES, Digest, MemberId, NodeId, member_of
from quorate.core.ordering import (
    Absent,
    Challenge,
    Entries,
    Line,
    Receipts,
    Refusal,
)
from quorate.crypto import receipts as signing
from quorate.crypto.digests import descriptor, digest_of, seal_descriptor
from quorate.crypto.events import check_events
from quorate.crypto.evidence import (
    Evidence,
    FalseReceipt,
    Keys,
    Malformed,
    TwoSeals,
    verify_evidence,
)
from quorate.crypto.sids import Checked, Place, Seal, check_seal
from quorate.protocol.auditing.findings import Finding, Findings, Where
from quorate.protocol.auditing.history import Ledger
from quorate.protocol.ordering.placement import stores_of
from quorate.protocol.ordering.value import chained, leaves_of
from quorate.protocol.topic import Topic

# A store that signed and does not have one batch may not have thousands.
SUSPECTED_MAX = 3
ABSENT_LOOKED_AT_MAX = 65_536

# Kept in place of a seal that was not seen.
_NO_SEAL = bytes(SEAL_BYTES)


@dataclass(slots=True)
class KnownKeys:
    """Whose keys are whose: what is certain, and what commands asked for.

    A command may have been refused. So what it asks for excuses a key, and proves nothing.
    """

    certain: Keys
    numbers: dict[str, MemberId]
    asked_for: dict[MemberId, list[bytes]] = field(default_factory=dict)
    # Whether every command that ever asked for a key has been seen.
    are_all: bool = False

    @staticmethod
    def of(cluster: Cluster, *others: Cluster) -> "KnownKeys":
        numbers = {member.name: member.number for member in cluster.members}
        numbers |= {former.name: former.number for former in cluster.formers}
        return KnownKeys(Keys.of(cluster, *others), numbers)

    def learn(self, payload: bytes) -> None:
        """A batch of commands may bring keys."""
        for event in Batch(payload).events():
            command = decode_command(event.value)
            if isinstance(command, PutClient) and command.name in self.numbers:
                known = self.asked_for.setdefault(self.numbers[command.name], [])
                known.append(command.sign_key)

    def has(self, member: MemberId, key: bytes) -> bool:
        return key in self.certain.keys.get(member, ())

    def may_have_had(self, member: MemberId, key: bytes) -> bool:
        return not self.are_all or key in self.asked_for.get(member, ())

    def holds(self, evidence: Evidence) -> bool:
        """Whether somebody else with the certain keys would be convinced."""
        try:
            verify_evidence(evidence, self.certain)
        except RemoteProtocolError:
            return False
        return True


class Holding:
    """What one replica has of one partition, as far as it was read."""

    __slots__ = (
        "absent", "batches", "cursor", "end", "kept_from", "lacking", "payload_bytes", "start"
    )  # fmt: skip

    def __init__(self, kept_from: int, start: int, end: int) -> None:
        # Before this nothing is kept, it says.
        self.kept_from = kept_from
        # It is read between these.
        self.start, self.end = start, max(start, end)
        self.cursor = start
        # How many batches it has brought, right or wrong, and how many it does not have.
        self.batches = self.lacking = self.payload_bytes = 0
        # What it does not have, from one offset to before another, in order.
        self.absent: list[tuple[int, int]] = []

    @property
    def is_done(self) -> bool:
        return self.cursor >= self.end

    def lack(self, end: int, batches: int) -> None:
        """It does not have the next ones, which are so many."""
        start, self.cursor = self.cursor, end
        self.lacking += batches
        if self.absent and self.absent[-1][1] == start:
            start = self.absent.pop()[0]
        self.absent.append((start, end))

    def has(self, offset: int) -> bool:
        is_absent = any(start <= offset < end for start, end in self.absent)
        return self.start <= offset < self.cursor and not is_absent

    def bounds(self) -> Iterable[int]:
        """Where it may be otherwise from one batch to the next."""
        yield from (self.kept_from, self.start, self.cursor)
        for start, end in self.absent:
            yield from (start, end)


@dataclass(frozen=True, slots=True)
class Missing:
    """Offsets of consecutive batches whose payloads nobody who answered has.

    So many say that their retention took them, and so many have not answered.
    """

    start: int
    end: int
    gone: int
    silent: int


class SealAudit:
    """What is behind the seals of batches that were agreed on, whoever has them."""

    def __init__(
        self, keys: KnownKeys, findings: Findings, name_of: Callable[[MemberId], str]
    ) -> None:
        self.checked = Checked()
        self.notes: dict[str, None] = {}
        self._keys, self._findings, self._name_of = keys, findings, name_of

    def look(
        self,
        place: Place,
        sequence: int,
        offset: int,
        payload: bytes,
        *,
        event_proofs: bool | None = None,
    ) -> int | None:
        """How many events a batch delivers that was ordered here; None if its seal does not hold.

        Whether it has a tree of events is looked at where it is known that it has to, or must not.
        """
        try:
            seal = Seal.decode(payload)
            check_seal(place, sequence, seal, self.checked)
            if event_proofs not in (None, seal.has_event_proofs):
                raise RemoteProtocolError("a batch with, or without, a tree of events")
        except RemoteProtocolError as error:
            # No correct replica lets it pass: more than f of them did.
            self._find("bad-seal", "", place, offset, f"what was ordered is {error}")
            return None
        self._check_key(place, offset, seal)
        try:
            return check_events(payload)
        except RemoteProtocolError as error:
            who = self._name_of(place.producer)
            evidence = Malformed.of(place, sequence, payload)
            proof = evidence if evidence is not None and self._keys.holds(evidence) else None
            self._find("malformed", who, place, offset, f"{who} signed {error}", proof)
            return 0

    def _check_key(self, place: Place, offset: int, seal: Seal) -> None:
        if self._keys.has(place.producer, seal.public_key):
            return
        who = self._name_of(place.producer)
        if self._keys.may_have_had(place.producer, seal.public_key):
            self.notes[
                f"'{place.topic}' has batches of {who} with a key that {who} may have had before"
            ] = None
        else:
            self._find(
                "unknown-key", "", place, offset,
                f"what was ordered of {who} is signed with a key that {who} never had",
            )  # fmt: skip

    def _find(
        self,
        kind: str,
        who: str,
        place: Place,
        offset: int,
        sentence: str,
        evidence: Evidence | None = None,
    ) -> None:
        where = Where(topic=place.topic, partition=place.partition, offset=offset)
        self._findings.add(Finding(kind, who, where, sentence, evidence))


class PartitionAudit:
    """One partition: what its ledger says, and what replicas brought."""

    def __init__(
        self,
        topic: Topic,
        ledger: Ledger,
        keys: KnownKeys,
        findings: Findings,
        name_of: Callable[[NodeId], str],
        followers: tuple[NodeId, ...] = (),
    ) -> None:
        """Followers keep what members order, and sign for nothing."""
        self.topic, self.ledger = topic, ledger
        self.sources = (*topic.members, *followers)
        self.holdings: dict[NodeId, Holding] = {}
        self.batches = self.payload_bytes = 0
        # How many events its batches deliver, and how many of these their producers signed.
        self.events = self.signed_events = 0
        # With all copies.
        self.checked_bytes = 0
        self._keys, self._findings, self._name_of = keys, findings, name_of
        self._is_validated = topic.contract.validated
        self._seals_check = SealAudit(keys, findings, name_of)
        # By the numbers that batches have in the ledger, like all that follows.
        self._seen = bytearray(ledger.batches)
        # Of what was right, so that what contradicts it can be proved.
        self._seals = bytearray(ledger.batches * SEAL_BYTES if self._is_validated else 0)
        # What producers signed and nobody agreed on.
        self._rivals: dict[int, bytes] = {}

    @property
    def notes(self) -> dict[str, None]:
        return self._seals_check.notes

    @property
    def producers(self) -> list[MemberId]:
        return sorted({member_of(run.publisher) for run in self.ledger.runs})

    @property
    def audited_from(self) -> int | None:
        """The first offset of which a payload was seen."""
        at = self._seen.find(1)
        return None if at < 0 else self.ledger.offsets[at]

    @property
    def is_whole(self) -> bool:
        """Whether a payload of every batch was seen that there ever was."""
        return self.ledger.first == 0 and self.batches == self.ledger.batches

    # Payloads

    def begin(self, replica: NodeId, kept_from: int) -> Holding:
        """A replica is read from where it keeps something, it says."""
        start = self.ledger.floor(kept_from)
        self.holdings[replica] = Holding(start, start, self.ledger.end)
        return self.holdings[replica]

    def lack(self, replica: NodeId, absent: Absent) -> None:
        """A replica does not have the next batch, and perhaps some more."""
        ledger, holding = self.ledger, self.holdings[replica]
        first = ledger.at(holding.cursor)
        through = max(first, ledger.at(min(absent.end, holding.end) - 1))
        holding.lack(ledger.offsets[through + 1], through + 1 - first)

    def check(self, replica: NodeId, entries: Entries) -> None:
        """What a replica says stands at this offset, if the ledger has it.

        What it was not asked for, since it begins elsewhere than its last batch ended, may have
        come twice; but it must stand there.
        """
        ledger, holding = self.ledger, self.holdings[replica]
        payloads, offset = entries.payloads, entries.offset
        if not ledger.first <= offset < ledger.end:
            return
        number, is_next = ledger.at(offset), offset == holding.cursor and not holding.is_done
        if is_next:
            size = sum(map(len, payloads))
            self.checked_bytes += size
            holding.payload_bytes += size
            brought = min(len(payloads), ledger.batches - number)
            holding.batches += brought
            holding.cursor = ledger.offsets[number + brought]
        if not self._stands_as_agreed(number, entries):
            what = "says that another line stands, or that another batch begins,"
            self._accuse(replica, "wrong-position", offset, what, is_its_word=True)
            return
        if not is_next:
            return
        contents = [*map(descriptor, payloads)]
        if b"".join(contents) == ledger.descriptors_of(number, len(payloads)):
            self._look_into(number, payloads)
            return
        # Of large payloads a link protects what they hash to, and not themselves.
        is_its_word = self._fits_itself(entries, contents)
        what = "sends other bytes than were agreed on"
        if not is_its_word:
            what += ", and than it says itself (its disk or its link alters them),"
        for at, (found, payload) in enumerate(zip(contents, payloads, strict=True), number):
            if found == ledger.descriptors_of(at):
                self._look_into(at, [payload])
            else:
                self._accuse(
                    replica, "altered-payload", ledger.offsets[at], what, is_its_word=is_its_word
                )
                self._look_for_rival(at, payload)

    def _stands_as_agreed(self, number: int, entries: Entries) -> bool:
        """Whether a batch begins there, and those are the lines that these batches are of."""
        ledger, end = self.ledger, number + len(entries.payloads)
        if entries.offset != ledger.offsets[number] or end > ledger.batches:
            return False
        at = number
        while at < end:
            run, first = ledger.run_of(at)
            said = entries.publisher, entries.first + at - number, entries.time_us
            if said != (run.publisher, run.first + at - first, run.time_us):
                return False
            at = first + run.batches
        return True

    def _look_into(self, first: int, payloads: Sequence[bytes]) -> None:
        """These are what was agreed on; each is looked into once."""
        for number, payload in enumerate(payloads, first):
            if self._seen[number]:
                continue
            self._seen[number] = 1
            self.batches += 1
            self.payload_bytes += len(payload)
            if is_signed(payload):
                self._look_into_signed(number, payload)
                continue
            try:
                self.events += Batch(payload).count
                if self.topic.id == CONTROL_TOPIC_ID:
                    self._keys.learn(payload)
            except QuorateError:
                self.notes[f"'{self.topic.name}' has basic batches that are malformed"] = None

    def _look_into_signed(self, number: int, payload: bytes) -> None:
        (place, sequence), offset = self._place(number), self.ledger.offsets[number]
        if not self._is_validated:
            what = "what was ordered is a signed batch, on a topic that is not validated"
            self._find("bad-seal", "", offset, what)
            return
        looked = self._seals_check.look(
            place, sequence, offset, payload, event_proofs=self.topic.contract.event_proofs
        )
        if looked is None:
            return
        at = number * SEAL_BYTES
        self._seals[at : at + SEAL_BYTES] = payload[:SEAL_BYTES]
        self.events += looked
        self.signed_events += looked

    def _fits_itself(self, entries: Entries, contents: list[bytes]) -> bool:
        """Whether these payloads are those that the message is about."""
        line = Line(entries.publisher, *self.ledger.partition)
        leaves = leaves_of(line, entries.first, entries.offset, entries.time_us, contents)
        return chained(entries.before, leaves)[-1] == entries.after

    def _look_for_rival(self, number: int, payload: bytes) -> None:
        """What is wrong may be signed all the same, and as what was agreed on."""
        seal = payload[:SEAL_BYTES]
        if not self._is_validated or seal_descriptor(seal) == self.ledger.descriptors_of(number):
            # Other bytes behind the seal that was agreed on are no second seal.
            return
        place, sequence = self._place(number)
        try:
            check_seal(place, sequence, Seal.decode(payload), self._seals_check.checked)
        except RemoteProtocolError:
            return
        self._rivals.setdefault(number, seal)

    def _place(self, number: int) -> tuple[Place, int]:
        (run, first), partition = self.ledger.run_of(number), self.ledger.partition
        place = Place.of(
            self._keys.certain.cluster, self.topic.name, partition.number, run.publisher
        )
        return place, run.first + number - first

    # Receipts

    def suspects(self) -> list[tuple[NodeId, int]]:
        """Replicas, and batches that they do not have although they may have signed for them.

        So many signed for a large batch as must have had it. Where that many have it, or may have
        it, these are likely the ones; and then only those are asked that large batches belong to.
        A few batches of each are enough.
        """
        if not self._is_validated:
            return []
        ledger, stores = self.ledger, self.topic.quorum.one_correct
        silent = sum(member not in self.holdings for member in self.topic.members)
        designated = stores_of(self.topic.members, ledger.partition)[:stores]
        found: list[tuple[NodeId, int]] = []
        for replica in self.topic.members:
            holding = self.holdings.get(replica)
            if holding is None:
                continue
            absent = (
                ledger.offsets[number]
                for start, end in holding.absent
                for number in range(ledger.at(start), ledger.at(end - 1) + 1)
            )
            few = (
                offset
                for offset in islice(absent, ABSENT_LOOKED_AT_MAX)
                if offset >= holding.kept_from
                and (replica in designated or self._holders(offset) + silent < stores)
            )
            found += [(replica, offset) for offset in islice(few, SUSPECTED_MAX)]
        return found

    def witnesses(self, offset: int) -> list[NodeId]:
        """Who does not have this batch either, and so knows who signed for it."""
        return [
            replica
            for replica, holding in self.holdings.items()
            if any(start <= offset < end for start, end in holding.absent)
        ]

    def challenge(self, offset: int) -> Challenge:
        """Give this batch, or sign that it is not there."""
        ledger, number = self.ledger, self.ledger.at(offset)
        run, first = ledger.run_of(number)
        return Challenge(
            run.publisher, *ledger.partition, ledger.offsets[number], run.first + number - first,
            run.time_us, ledger.descriptors_of(number),
        )  # fmt: skip

    def has_signed(self, store: NodeId, receipts: Receipts) -> bool:
        """Whether these are about a batch as it was agreed on, with one that this store signed."""
        challenge = self.challenge(receipts.offset)
        said = receipts.publisher, receipts.sequence, receipts.digest
        if said != (challenge.publisher, challenge.sequence, digest_of(challenge.descriptor)):
            return False
        return any(receipt.store == store for receipt in receipts.receipts)

    def refused(self, store: NodeId, receipts: Receipts, refusal: Refusal) -> None:
        """A store signed that it does not have a batch: see what its receipts are worth."""
        number = self.ledger.at(refusal.offset)
        place, sequence = self._place(number)
        content = digest_of(self.ledger.descriptors_of(number))
        statement = signing.Refusal(
            place, sequence, content, refusal.offset, refusal.start, refusal.time_us
        )
        for each in receipts.receipts:
            if each.store != store:
                continue
            evidence = FalseReceipt.of(
                store,
                signing.Receipt(place, each.first, each.count, each.chain),
                each.signature,
                statement,
                refusal.signature,
                receipts.before,
                tuple(_digests_in(each.behind)),
            )
            if self._keys.holds(evidence):
                who = self._name_of(store)
                sentence = f"{who} signed that it stores batch {sequence}, and that it does not"
                self._find("false-receipt", who, refusal.offset, sentence, evidence)
                return

    def _holders(self, offset: int) -> int:
        return sum(holding.has(offset) for holding in self.holdings.values())

    # Judging

    def judge(self, silent: int) -> list[Missing]:
        """When all has come that will: who signed twice, and what nobody has."""
        for number, rival in self._rivals.items():
            at, offset = number * SEAL_BYTES, self.ledger.offsets[number]
            agreed = bytes(self._seals[at : at + SEAL_BYTES])
            place, sequence = self._place(number)
            if agreed == _NO_SEAL:
                continue
            evidence = TwoSeals.of(place, sequence, Seal.decode(agreed), Seal.decode(rival))
            if self._keys.holds(evidence):
                who = self._name_of(place.producer)
                self._find(
                    "two-seals", who, offset,
                    f"{who} signed two batches as number {sequence} of its line", evidence,
                )  # fmt: skip
        return self._judge_missing(silent)

    def _judge_missing(self, silent: int) -> list[Missing]:
        found: list[Missing] = []
        for missing in self._missing(silent):
            # So many had it before it was ordered.
            stores = self.topic.quorum.one_correct
            if missing.gone >= stores:
                continue
            if missing.silent:
                found.append(missing)
                continue
            last = missing.end - 1
            is_one = missing.start == last
            offsets = f"offset {last}" if is_one else f"offsets {missing.start} to {last}"
            self._find(
                "gap", "", missing.start,
                f"nobody has the payload of {offsets} of partition "
                f"{self.ledger.partition.number} of '{self.topic.name}', which {stores} stores had",
            )  # fmt: skip
        return found

    def _missing(self, silent: int) -> Iterable[Missing]:
        first, end = self.ledger.first, self.ledger.end
        bounds = {first, end}
        for holding in self.holdings.values():
            bounds.update(bound for bound in holding.bounds() if first < bound < end)
        for start, stop in pairwise(sorted(bounds)):
            if any(holding.has(start) for holding in self.holdings.values()):
                continue
            gone = sum(holding.kept_from > start for holding in self.holdings.values())
            behind = sum(
                holding.cursor <= start and holding.kept_from <= start
                for holding in self.holdings.values()
            )
            yield Missing(start, stop, gone, silent + behind)

    def _accuse(
        self, replica: NodeId, kind: str, offset: int, what: str, *, is_its_word: bool
    ) -> None:
        """Where crashes only are tolerated, what a replica says may be what a liar told it."""
        who = self._name_of(replica)
        is_deceived = is_its_word and self.topic.contract.protection == "crash"
        partition = f"partition {self.ledger.partition.number} of '{self.topic.name}'"
        sentence = f"{who} {what} at offset {offset} of {partition}"
        self._find(kind, "" if is_deceived else who, offset, sentence)

    def _find(
        self, kind: str, who: str, offset: int, sentence: str, evidence: Evidence | None = None
    ) -> None:
        where = Where(topic=self.topic.name, partition=self.ledger.partition.number, offset=offset)
        self._findings.add(Finding(kind, who, where, sentence, evidence))


def _digests_in(data: bytes) -> Iterator[Digest]:
    return (data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))
