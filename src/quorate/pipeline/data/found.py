"""What a job should find, and what those hear of it who are to know.

The generators of this package know what is true. Whoever plays their data live notes here who was
told what and when, so that precision, recall and delay are counted.
"""

import statistics
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Found:
    """Whom a job is to find, and whom each subscriber hears that it found."""

    subscribers: tuple[str, ...]
    # From when on each can be found, as Unix time.
    truth: dict[str, float] = field(default_factory=dict)
    # When each subscriber was told, by whom is found.
    told: dict[str, dict[str, float]] = field(default_factory=dict)

    def on_told(self, subscriber: str, name: str) -> bool:
        """Whether the last of the subscribers knows by now, for the first time."""
        told = self.told.setdefault(name, {})
        is_new = subscriber not in told
        told.setdefault(subscriber, time.time())
        return is_new and len(told) == len(self.subscribers)

    @property
    def known(self) -> set[str]:
        """Who is to be found, and of whom every subscriber knows."""
        return {
            name
            for name, told in self.told.items()
            if name in self.truth and len(told) == len(self.subscribers)
        }

    @property
    def precision(self) -> float:
        """Of those of whom any subscriber was told, who is rightly there."""
        return len(self.told.keys() & self.truth.keys()) / len(self.told) if self.told else 1.0

    @property
    def recall(self) -> float:
        return len(self.known) / len(self.truth) if self.truth else 1.0

    def after_s(self, name: str) -> float:
        """How long it took until everybody knew."""
        return max(self.told[name].values()) - self.truth[name]

    def result(self) -> dict[str, object]:
        took = [self.after_s(name) for name in self.known]
        return {
            "there": len(self.truth),
            "found": len(self.known),
            "wrong": sorted(self.told.keys() - self.truth.keys()),
            "missed": sorted(self.truth.keys() - self.known),
            "precision": self.precision,
            "recall": self.recall,
            "p50_s": round(statistics.median(took), 2) if took else None,
            "max_s": round(max(took), 2) if took else None,
        }
