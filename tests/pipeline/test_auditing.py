"""Archives made by hand: what producers and a quorum of replicas signed wrongly is found."""

from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby
from pathlib import Path

import pytest

from quorate.core.batch import encode
from quorate.core.contract import Contract
from quorate.core.errors import RemoteProtocolError
from quorate.core.event import Event
from quorate.core.header import NO_ROOT
from quorate.core.ids import MemberId, NodeId, node_of, topic_id
from quorate.core.ordering import Line
from quorate.crypto.checkpoint import Cosignature, Cosigner, Head, cosigned_bytes, log_origin
from quorate.crypto.checkpoint import render as render_checkpoint
from quorate.crypto.digests import descriptor, digest_of
from quorate.crypto.evidence import Keys, verify_evidence
from quorate.crypto.identity import Identity
from quorate.crypto.merkle import Hash, Tree, runs_proof
from quorate.crypto.proofs import Keys as ProofKeys
from quorate.crypto.proofs import verify
from quorate.crypto.sids import Place
from quorate.pipeline.archive import Archive, prove_archived
from quorate.pipeline.archiving import Archiver, stage
from quorate.pipeline.auditing import ARCHIVE, FileAudit, KeyRing, Looked, follow_on, two_heads
from quorate.pipeline.auditing import two_trees as trees_apart
from quorate.pipeline.proofs import payload_of as rebuilt
from quorate.pipeline.rows import Rows
from quorate.protocol.auditing.findings import Finding, Findings
from quorate.protocol.ordering.ranges import RangeProof, Settled
from quorate.protocol.ordering.value import leaves_of, offsets_of
from quorate.runtime.local import make_local_cluster
from seals import sealed

TOPIC = "t"
LOCAL = make_local_cluster(
    topics={
        TOPIC: Contract.parse(
            TOPIC, {"order": "total", "protection": "byzantine", "validated": True, "partitions": 2}
        )
    }
)
CLUSTER = LOCAL.cluster
ALICE: MemberId = CLUSTER.named("alice").number
TIME_US = 1_700_000_000_000_000


@dataclass
class Quorum:
    """Three of four replicas, who sign whatever is in their log."""

    nodes: dict[tuple[int, int], Hash] = field(default_factory=dict)
    tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        self.tree = Tree(
            on_node=lambda level, number, node: self.nodes.update({(level, number): node})
        )

    def checkpoint(self) -> str:
        head = Head(log_origin(CLUSTER.full_name, "byzantine"), self.tree.size, self.tree.root())
        signatures = [
            Cosignature(
                replica.name, 5, LOCAL.identities[replica.name].sign(cosigned_bytes(head, 5))
            )
            for replica in CLUSTER.replicas[:3]
        ]
        cosigners = [Cosigner(each.name, each.sign_key) for each in CLUSTER.replicas]
        return render_checkpoint(head, signatures, cosigners)


def payload_of(
    number: int,
    partition: int = 0,
    *,
    signer: Identity | None = None,
    salt: bytes = b"",
    root: bytes = NO_ROOT,
) -> bytes:
    """Batch `number` of alice, which has two events, and the tree of events that it says it has."""
    signer = signer or LOCAL.identities["alice"]
    place = Place(CLUSTER.full_name, TOPIC, partition, ALICE, 1)
    return sealed(
        place, number, basic(number), time_us=TIME_US, salt=salt, root=root,
        public_key=signer.public.sign_key, sign=signer.sign,
    )  # fmt: skip


def basic(number: int) -> bytes:
    return encode([Event(None, b"%d %d" % (number, each), (), TIME_US) for each in range(2)])


def ordered(
    quorum: Quorum, offset: int, payloads: list[bytes], first: int, partition: int = 0
) -> list[Settled]:
    """These batches as they come out of the order log, under the checkpoint after them."""
    publisher: NodeId = node_of(ALICE, 1)
    line, at = Line(publisher, topic_id(TOPIC), partition), quorum.tree.size
    described = [*map(descriptor, payloads)]
    leaves = leaves_of(line, first, offset, TIME_US, described)
    for leaf in leaves:
        quorum.tree.append(leaf)
    size, runs = quorum.tree.size, [range(at, quorum.tree.size)]
    path = runs_proof(lambda level, number: quorum.nodes[level, number], runs, size)
    proof = RangeProof(size, runs, leaves, path, quorum.checkpoint())
    bounds = offsets_of(offset, described)
    return [
        Settled(
            bounds[number], bounds[number + 1], publisher, first + number, TIME_US, payload,
            digest_of(described[number]), at + number, size, None if number else proof,
        )
        for number, payload in enumerate(payloads)
    ]  # fmt: skip


def archive(directory: Path, *parts: list[Settled], partition: int = 0) -> None:
    archiver = Archiver(str(directory))
    for part in parts:
        stretch = range(part[0].offset, part[-1].end)
        rows = Rows(TOPIC, partition, stretch, CLUSTER.name_of, proofs=True).of(part)
        archiver.add([*stage(str(directory), archiver.settle().next, rows)])


def looked_into(directory: Path, findings: Findings) -> list[Looked]:
    made = Archive(str(directory))
    looker = FileAudit(made, KeyRing([CLUSTER]), findings)
    files = sorted(made.view().files, key=lambda file: (file.partition, file.first))
    looked = [looker.look(file) for file in files]
    for _, of_partition in groupby(looked, key=lambda each: each.partition):
        follow_on(of_partition, CLUSTER.name_of, findings)
    return looked


def kinds(findings: Findings) -> list[tuple[str, str, int | None]]:
    return [(each.kind, each.who, each.where.offset) for pile in findings for each in pile.examples]


def forks(looked: list[Looked]) -> list[Finding]:
    nodes = sorted(node for each in looked for node in each.nodes)
    found = [trees_apart(same) for _, same in groupby(nodes, key=lambda node: node[:2])]
    return [fork for fork in found if fork is not None]


def test_what_one_quorum_signed_is_sound_however_often_it_signed(tmp_path: Path) -> None:
    quorum, findings = Quorum(), Findings()
    parts = [
        ordered(quorum, 2 * at, [payload_of(at + each + 1) for each in range(3)], at + 1)
        for at in range(0, 12, 3)
    ]
    archive(tmp_path, *parts)

    looked = looked_into(tmp_path, findings)

    assert kinds(findings) == []
    assert forks(looked) == []
    assert reduce(lambda total, each: total + each.batches, looked, 0) == 12
    assert {size for each in looked for size, _, _ in each.heads} == {3, 6, 9, 12}


def test_checkpoints_that_do_not_extend_each_other_are_found(tmp_path: Path) -> None:
    """The same replicas go on with a log in which the first batches were others."""
    one, other, findings = Quorum(), Quorum(), Findings()
    first = ordered(one, 0, [payload_of(number) for number in (1, 2, 3, 4)], 1)
    ordered(other, 0, [payload_of(number) for number in (5, 6, 7, 8)], 5)
    second = ordered(other, 8, [payload_of(5), payload_of(6)], 5)
    archive(tmp_path, first, second)

    looked = looked_into(tmp_path, findings)

    # Each batch, and each of the two checkpoints, is as it should be.
    assert kinds(findings) == []
    (fork,) = forks(looked)
    assert (fork.kind, fork.who) == ("fork", "")
    assert "positions 0 to 3 are not the same" in fork.sentence


def test_who_signed_two_checkpoints_of_one_size_is_named_with_evidence(tmp_path: Path) -> None:
    one, other, findings = Quorum(), Quorum(), Findings()
    archive(tmp_path, ordered(one, 0, [payload_of(1)], 1))
    archive(tmp_path, ordered(other, 0, [payload_of(1, 1)], 1, partition=1), partition=1)

    looked = looked_into(tmp_path, findings)
    named = [*two_heads(KeyRing([CLUSTER]), [note for each in looked for *_, note in each.heads])]

    assert [finding.who for finding in named] == [each.name for each in CLUSTER.replicas[:3]]
    for finding in named:
        assert finding.evidence is not None
        assert verify_evidence(finding.evidence, Keys.of(CLUSTER)).name == finding.who


def test_a_producer_that_signed_another_tree_of_events_is_named_with_evidence(
    tmp_path: Path,
) -> None:
    findings = Findings()
    false = payload_of(2, salt=bytes(32), root=b"another".ljust(32))
    archive(tmp_path, ordered(Quorum(), 0, [payload_of(1), false], 1))

    looked_into(tmp_path, findings)

    assert kinds(findings) == [("malformed", "alice", 2)]
    (pile,) = findings
    evidence = pile.examples[0].evidence
    assert evidence is not None
    assert verify_evidence(evidence, Keys.of(CLUSTER)).name == "alice"


def test_basic_batches_of_a_validated_topic_are_archived_sound_and_proved_as_basic(
    tmp_path: Path,
) -> None:
    findings = Findings()
    compressed = encode([Event(None, b"long" * 100, (), TIME_US)] * 2, compression="zstd")
    archive(tmp_path, ordered(Quorum(), 0, [payload_of(1), basic(2), compressed], 1))

    (looked,) = looked_into(tmp_path, findings)

    assert kinds(findings) == []
    assert (looked.batches, looked.events, looked.unproved) == (3, 6, 0)
    keys = ProofKeys.of(CLUSTER)
    for offset in range(6):
        verdict = verify(prove_archived(Archive(str(tmp_path)), keys, TOPIC, 0, offset), keys)
        assert (verdict.producer_name, verdict.is_signed) == ("alice", offset < 2)


def test_rows_are_not_taken_for_a_batch_whose_signed_header_says_otherwise() -> None:
    (two,) = Rows(TOPIC, 0, range(2), CLUSTER.name_of, proofs=True).of(
        ordered(Quorum(), 0, [payload_of(1)], 1)
    )
    kept = two["proof"][0].as_py()

    assert kept["body"] is None
    assert rebuilt(kept, two) == payload_of(1)
    with pytest.raises(RemoteProtocolError, match="not what the header says that was signed"):
        rebuilt(kept, two.slice(0, 1))


def test_a_seal_of_another_place_that_was_ordered_all_the_same_is_found(tmp_path: Path) -> None:
    findings = Findings()
    archive(tmp_path, ordered(Quorum(), 0, [payload_of(1), payload_of(2, 1)], 1))

    looked_into(tmp_path, findings)

    assert kinds(findings) == [("bad-seal", "", 2)]


def test_numbers_that_are_left_out_or_come_again_are_found(tmp_path: Path) -> None:
    quorum, findings = Quorum(), Findings()
    archive(
        tmp_path,
        ordered(quorum, 0, [payload_of(1), payload_of(2)], 1),
        ordered(quorum, 4, [payload_of(5)], 5),
        ordered(quorum, 6, [payload_of(5)], 5),
    )

    looked_into(tmp_path, findings)

    assert kinds(findings) == [("broken-history", "", 4), ("broken-history", "", 6)]
    (pile,) = findings
    assert "has batch 5 of alice where 3 is the next" in pile.examples[0].sentence


def test_a_stretch_that_was_never_archived_is_a_gap_and_no_broken_line(tmp_path: Path) -> None:
    quorum, findings = Quorum(), Findings()
    first = ordered(quorum, 0, [payload_of(1)], 1)
    ordered(quorum, 2, [payload_of(2), payload_of(3)], 2)
    archive(tmp_path, first, ordered(quorum, 6, [payload_of(4)], 4))

    looked_into(tmp_path, findings)

    assert kinds(findings) == [("gap", ARCHIVE, 2)]


def test_malformed_batches_where_files_meet_are_no_gap(tmp_path: Path) -> None:
    """Whoever publishes something that holds no events has no archive accused."""
    quorum, findings = Quorum(), Findings()
    malformed = basic(9)[:-1]
    archive(
        tmp_path,
        ordered(quorum, 0, [payload_of(1), malformed], 1),
        ordered(quorum, 4, [malformed, payload_of(4)], 3),
    )

    looked = looked_into(tmp_path, findings)

    assert [(each.first, each.last) for each in looked] == [(0, 1), (6, 7)]
    assert kinds(findings) == []


def test_another_key_than_the_pinned_one_is_a_note_since_it_may_have_been_one(
    tmp_path: Path,
) -> None:
    findings, made = Findings(), Archive(str(tmp_path))
    other = Identity.generate("alice")
    archive(tmp_path, ordered(Quorum(), 0, [payload_of(1, signer=other)], 1))
    looker = FileAudit(made, KeyRing([CLUSTER]), findings)

    (looked,) = [looker.look(file) for file in made.view().files]

    assert kinds(findings) == []
    assert looked.unproved == 0
    assert looker.notes == ["'t' has batches of alice with a key that alice may have had before"]


def test_a_checkpoint_of_other_keys_leaves_positions_unproved(tmp_path: Path) -> None:
    findings, made = Findings(), Archive(str(tmp_path))
    archive(tmp_path, ordered(Quorum(), 0, [payload_of(1)], 1))
    later = replace(make_local_cluster().cluster, nonce=CLUSTER.nonce, founders=CLUSTER.founders)
    looker = FileAudit(made, KeyRing([later]), findings)

    (looked,) = [looker.look(file) for file in made.view().files]

    assert kinds(findings) == []
    assert looked.unproved == 1
    assert any("of keys of another time" in note for note in looker.notes)
    # With the file of that time it is proved.
    again = FileAudit(made, KeyRing([later, CLUSTER]), findings)
    assert again.look(made.view().files[0]).unproved == 0
