"""A reader of a validated topic, and no replicas but what the test says for them."""

import msgspec

from council import NAMES, VALIDATED, A, T
from quorate.core.header import events_in
from quorate.core.ids import Digest, NodeId
from quorate.core.ordering import Chained, Entries, Line, Partition, Wants
from quorate.crypto.digests import descriptor
from quorate.protocol.machine import Entry, Passed
from quorate.protocol.ordering.reading import Reading
from quorate.protocol.ordering.records import Stretch
from quorate.protocol.ordering.validation import Validation
from quorate.protocol.ordering.value import CHAIN_START, chained, leaves_of
from quorate.sim.sealing import CLUSTER, public_key
from stage import Outlook, topic

EVERYBODY = {0, 1, 2, 3}
KEYS = {node: public_key(node) for node in NAMES}


class Desk:
    """A reader of partition 0, and replicas that say what the test wants."""

    def __init__(self, keys: dict[int, bytes] | None = None, *, validates: bool = True) -> None:
        self.look = Outlook()
        validated = topic(VALIDATED)
        validation = Validation(CLUSTER, [validated], KEYS if keys is None else keys)
        self.reader = Reading(
            validated, Partition(T, 0), 0, self.look.outbox,
            validation=validation if validates else None,
        )  # fmt: skip
        self.passed: list[int] = []
        self.reader.begin(EVERYBODY)

    @property
    def lead(self) -> NodeId:
        assert self.reader.lead is not None
        return self.reader.lead

    def entries(self, *payloads: bytes) -> Entries:
        """As a replica sends them to this reader."""
        stretch = Stretch(A, 0, 1, 0, CHAIN_START, self.chain(*payloads), [*payloads])
        wants = Wants.ALL if self.reader.validation is None else Wants.SIGNED
        stretch = msgspec.structs.replace(
            stretch, chains=bytes(32 * (len(payloads) - 1)) + stretch.chains
        )
        return stretch.entries(Partition(T, 0), len(payloads), wants)

    @staticmethod
    def chain(*payloads: bytes) -> Digest:
        leaves = leaves_of(Line(A, T, 0), 1, 0, 0, [*map(descriptor, payloads)])
        return chained(CHAIN_START, leaves)[-1]

    def say(self, *payloads: bytes) -> None:
        """The lead sends these, and another one has the chain of them."""
        self.reader.on_entries(self.lead, self.entries(*payloads), EVERYBODY)
        end, chain = sum(map(events_in, payloads)), self.chain(*payloads)
        other = min(EVERYBODY - {self.lead})
        self.reader.on_chained(other, Chained(T, 0, end, chain, 0, 0, end), EVERYBODY)

    def take(self) -> tuple[list[Entry], list[str]]:
        ready = self.look.take()
        entries = [outcome for outcome in ready.deliver if isinstance(outcome, Entry)]
        self.passed += [each.offset for each in ready.deliver if isinstance(each, Passed)]
        return entries, [report.kind for report in ready.reports]
