"""Which replicas a publisher has its large batches stored by.

Source: DESIGN section 3 (data plane): f + 1 stores are written, and the next one is tried when one
is slow or refuses.

A partition has its stores in an order (`placement.py`), and the first f + 1 are enough. A publisher
does not hear who stores what. It sees whom it cannot reach, who does not say that batches were
ordered which have their receipts, and that nothing moves:

- who cannot be sent anything for a moment is passed over until it can;
- when nothing moves, a store that lags behind the receipts is doubted. If there is no such one, one
  more store is used for a while: one of those in use does not help, and it is not known which.
  While nothing of a line has a receipt yet, that is a short while: it may be that everything takes
  its time at first, and one copy more of everything makes that no better;
- who is seen to lag behind while more stores are used is doubted, and another one does for it.

A replica that lies can say that it is ahead of all others. So nobody is measured by that, but by
receipts, which take f + 1 replicas.

Who is doubted comes last for a while, and is tried again then, each time later. A store that costs
time does so once in that while, and not with every batch.
"""

from collections.abc import Callable

from quorate.core.ids import NodeId, Sequence

# Not being able to send to a store for less than this is nothing unusual.
PASS_OVER_AFTER_US = 100_000
# Who says nothing for so long, while others do, lags behind.
LAG_US_MAX = 400_000
DOUBT_US = 10_000_000
DOUBT_US_MAX = 320_000_000
# For so long one more store is used for a line of which nothing has a receipt yet.
FIRST_WIDE_US = 1_000_000


class StoreChoice:
    """The stores of one line, as its publisher sees them."""

    def __init__(self, order: tuple[NodeId, ...], needed: int) -> None:
        self.chosen: frozenset[NodeId] = frozenset(order[:needed])
        self._order, self._needed = order, needed
        # How many are used, and until when if those are more than needed.
        self._used = needed
        self._wide_until_us = 0
        self._wide_us = DOUBT_US
        # Since when a replica cannot be sent anything.
        self._unreachable_us: dict[NodeId, int] = {}
        # Until when a replica comes last, and for how long that was.
        self._doubted: dict[NodeId, tuple[int, int]] = {}
        # Up to which batch each said that they were ordered.
        self._said: dict[NodeId, Sequence] = dict.fromkeys(order, 0)
        # What a store is to say, since when.
        self._due: dict[NodeId, tuple[Sequence, int]] = {}

    def on_ordered(self, replica: NodeId, through: Sequence) -> None:
        """A replica says that the line was ordered up to here."""
        self._said[replica] = max(self._said[replica], through)

    def choose(self, can_send: Callable[[NodeId], bool], now_us: int) -> frozenset[NodeId]:
        """Says who takes the place of a store that is of no use now."""
        for replica in self._order:
            if can_send(replica):
                self._unreachable_us.pop(replica, None)
            else:
                self._unreachable_us.setdefault(replica, now_us)
        # Sorting keeps the order of those who are alike.
        ranked = sorted(self._order, key=lambda replica: self._is_useless(replica, now_us))
        former, self.chosen = self.chosen, frozenset(ranked[: self._used])
        is_replacing = any(self._is_useless(store, now_us) for store in former - self.chosen)
        return self.chosen - former if is_replacing else frozenset()

    def stuck(self, receipted: Sequence, now_us: int) -> None:
        """Nothing moves behind what has its receipts: somebody whom we use does not help."""
        fresh = [
            store
            for store in self._order
            if store in self.chosen
            and self._said[store] < receipted
            and not self._is_useless(store, now_us)
        ]
        for store in fresh:
            self._doubt(store, now_us)
        if not fresh and self._used < len(self._order):
            self._used += 1
            self._wide_until_us = now_us + (self._wide_us if receipted else FIRST_WIDE_US)
            if receipted:
                self._wide_us = min(2 * self._wide_us, DOUBT_US_MAX)

    def tick(self, receipted: Sequence, now_us: int) -> None:
        """See whether we can do with fewer stores again; so much has its receipts."""
        if self._used == self._needed:
            return
        for store in [store for store in self._order if store in self.chosen]:
            due, since_us = self._due.setdefault(store, (receipted, now_us))
            if self._said[store] >= due:
                self._due[store] = receipted, now_us
            elif now_us - since_us >= LAG_US_MAX and self._used > self._needed:
                self._doubt(store, now_us)
                self._used -= 1
        if now_us >= self._wide_until_us:
            self._used = self._needed
        if self._used == self._needed:
            self._due.clear()

    def _doubt(self, store: NodeId, now_us: int) -> None:
        _, before_us = self._doubted.get(store, (0, DOUBT_US // 2))
        for_us = min(2 * before_us, DOUBT_US_MAX)
        self._doubted[store] = now_us + for_us, for_us

    def _is_useless(self, replica: NodeId, now_us: int) -> bool:
        since_us = self._unreachable_us.get(replica)
        if since_us is not None and now_us - since_us >= PASS_OVER_AFTER_US:
            return True
        return replica in self._doubted and now_us < self._doubted[replica][0]
