"""A broken protocol, kept on purpose.

Source: Freeman 2016, algorithm 3, taken by the letter.

The pseudo-code delivers a message when more than 2f messages have arrived, and never says
that they must be equal. This destination does just that: it counts voices and not contents,
so that the last of 2f + 1 voices alone chooses what is delivered. A checker that does not
find a lying replica's forgery in it is worth nothing, which is why every test run looks.
"""

from quorate.core.ids import Sequence
from quorate.protocol.destination import Destination
from quorate.protocol.incoming import Incoming


class CarelessIncoming(Incoming):
    """Counts how many spoke, whatever they said."""

    def _is_enough(self, sequence: Sequence, equal: int) -> bool:
        tally = self.ballot.open[sequence]
        return tally.voters.bit_count() >= self._needed


class CarelessDestination(Destination):
    """Authenticated broadcast without the word "equal"."""

    make_incoming = CarelessIncoming
