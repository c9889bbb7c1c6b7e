"""A replica that follows the protocol, and besides says what it is told to in its crash group.

It runs as `quorate.runtime.replica` does, in place of that (`LyingLauncher`). A test writes into
`DATA/orders`, line by line: `foreign TOPIC`, so that it says that the group decided a batch of this
topic; `fork TOPIC`, so that it says to each of the others that another batch was decided.
"""

import sys
from pathlib import Path

from quorate.core.batch import encode_values
from quorate.core.ids import NodeId, topic_id
from quorate.core.ordering import Decision
from quorate.crypto.digests import descriptor
from quorate.protocol.machine import Ready
from quorate.protocol.misbehaviour import Parts, behave
from quorate.protocol.ordering.placement import GroupKind
from quorate.protocol.ordering.value import CHAIN_START, Span, Value, chain_of
from quorate.runtime import replica
from quorate.runtime.launcher import Launcher

ORDERS = "orders"
LIAR = "r0"
# A publisher that nobody has ever heard of, so that its line begins.
NOBODY = 4000


class LyingLauncher(Launcher):
    """Starts `LIAR` as one that lies."""

    def _command(self, name: str) -> list[str]:
        command = super()._command(name)
        return [*command[:2], __file__, *command[4:]] if name == LIAR else command


class LyingReplica(replica.ReplicaProcess):
    """Takes orders from a file."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._orders = Path(str(arguments[-1])) / ORDERS
        self._driver.rewrite = self._lie

    def _lie(self, ready: Ready, now_us: int) -> Parts:
        if self._orders.exists():
            orders = self._orders.read_text().split("\n")
            self._orders.unlink()
            for order in filter(None, orders):
                what, topic = order.split()
                for victim in (1, 2):
                    text = str(victim) if what == "fork" else ""
                    ready.send.append((victim, self._decision(topic, text.encode())))
        return behave(ready, now_us)

    def _decision(self, topic: str, content: bytes) -> Decision:
        ordering = self.broker.ordering
        assert ordering is not None
        group, publisher = ordering.groups[GroupKind.CRASH], NodeId(NOBODY)
        described = descriptor(encode_values([content], 0))
        (chain,) = chain_of(CHAIN_START, [described])
        span = Span(publisher, topic_id(topic), 0, 1, 1, chain)
        value = Value(group.log.state.time_us + 1, (span,)).encode()
        return Decision(int(GroupKind.CRASH), group.consensus.slot, value, described)


if __name__ == "__main__":
    replica.ReplicaProcess = LyingReplica  # type: ignore[misc, assignment]
    sys.exit(replica.main())
