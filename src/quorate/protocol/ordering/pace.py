"""How long a group waits for what.

No time here affects safety. Simulations use a faster pace in some seeds, so that leaders change
in the middle of everything.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    tick_us: int = 50_000
    # A slot costs the same whatever it orders: under load the leader gathers for so long.
    gather_us: int = 4_000
    # What waits longer than this is told to all replicas, and owed by the leader from then on.
    slow_us: int = 250_000
    # How long a replica waits for what is owed before it asks for the next leader. The time
    # doubles with every change that does not help, and is back to this with the next decision.
    patience_us: int = 500_000
    patience_us_max: int = 16_000_000
    # When nothing moves, say where we are; and now and then anyway.
    standing_us: int = 100_000
    standing_idle_us: int = 1_000_000
    # Whoever is behind asks at once, but not more often than this.
    behind_us: int = 20_000
    # What a proposal names and we lack may still be on its way to us.
    retrieve_us: int = 30_000
    retrieve_again_us: int = 100_000

    @staticmethod
    def restless(patience_us: int) -> "Pace":
        """A pace at which leaders change all the time."""
        return Pace(
            tick_us=max(patience_us // 4, 1_000),
            gather_us=1_000,
            slow_us=patience_us // 2,
            patience_us=patience_us,
            patience_us_max=1_000_000,
            standing_us=patience_us,
            behind_us=patience_us // 4,
            retrieve_us=patience_us // 4,
            retrieve_again_us=patience_us // 2,
        )


PACE = Pace()
