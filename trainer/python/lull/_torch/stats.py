"""What the runtime counts about itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_KEEP = 32


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@dataclass
class Stats:
    """Counts since attach; times in seconds."""

    samples: int = 0
    steps: int = 0
    batches: int = 0
    microbatch: int = 0
    discards: int = 0
    samples_discarded: int = 0
    recomputed: int = 0
    dropped: int = 0
    lost_s: float = 0.0
    """Seconds of work thrown away by discards."""
    recompute_s: float = 0.0
    """Seconds of work done twice, since slots had been emptied."""
    mispredicted: int = 0
    loss: float | None = None
    microbatch_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEEP))
    batch_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEEP))
    rates: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Microbatch size -> (peak bytes, samples per second), of undisturbed microbatches."""

    waited_s: float = 0.0
    """Seconds that this rank waited for others, with nothing left to compute."""
    exchange_s: float = 0.0
    """Seconds of adding up the gradients of all ranks."""

    def batch(self, took: float, loss: float) -> None:
        self.batches += 1
        self.batch_s.append(took)
        self.loss = loss

    def ran(self, samples: int, took: float) -> None:
        self.samples += samples
        self.microbatch = samples
        self.microbatch_s.append(took)

    def rate(self, samples: int, peak: int, took: float) -> None:
        speed = samples / max(took, 1e-9)
        _, old = self.rates.get(samples, (peak, speed))
        self.rates[samples] = (peak, 0.8 * old + 0.2 * speed)
        if len(self.rates) > 64:
            self.rates.pop(next(iter(self.rates)))

    def fixed_samples(self) -> float:
        """Samples whose time a microbatch takes besides that of its own, by its smallest and its largest size."""
        if len(self.rates) < 2:
            return 0.0
        (few, quick), (many, slow) = ((n, n / self.rates[n][1]) for n in (min(self.rates), max(self.rates)))
        each = (slow - quick) / (many - few)
        return max(0.0, quick / each - few) if each > 0 else float(many)

    def rate_curve(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted((peak, round(speed, 3)) for peak, speed in self.rates.values()))

    @property
    def microbatch_ms(self) -> float:
        return _mean(self.microbatch_s) * 1e3

    @property
    def batch_ms(self) -> float:
        return _mean(self.batch_s) * 1e3

    @property
    def work_lost_s(self) -> float:
        """Seconds of one sample's work, lost or done twice."""
        return self.lost_s + self.recompute_s
