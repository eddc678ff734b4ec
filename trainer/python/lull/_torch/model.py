"""The memory model: bytes(b) = max(floor, base + slope * b), learned from microbatches that ran undisturbed."""

from __future__ import annotations

from lull._protocol import MemoryModel

_FORGET = 0.9
_GROWTH = 4


class Model:
    """Weighted least squares over (samples, peak bytes), older observations counting less."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5  # weight, b, bytes, b*b, b*bytes
        self._largest = 0
        self._smallest = 0
        self._smallest_bytes = 0.0
        self.error = 0.0
        """Bytes by which recent predictions were too low, decaying."""
        self.penalty = 1.0
        """Raised when the cap caught a misprediction; 1 when all went well."""

    def observe(self, samples: int, peak: int) -> None:
        """An undisturbed microbatch: its samples and its highest bytes."""
        if self._sums[0] > 0:
            self.error = max(peak - self.bytes(samples), self.error * _FORGET, 0.0)
        self._sums = [s * _FORGET for s in self._sums]
        for i, value in enumerate((1.0, samples, peak, samples * samples, samples * peak)):
            self._sums[i] += value
        if self._smallest == 0 or samples <= self._smallest:
            self._smallest, self._smallest_bytes = samples, float(peak)
        self._largest = max(self._largest, samples)
        self.penalty = max(1.0, self.penalty * 0.95)

    def caught(self) -> None:
        """A microbatch that should have fitted did not."""
        self.penalty = min(self.penalty * 1.15, 4.0)

    def _line(self) -> tuple[float, float]:
        w, b, y, bb, by = self._sums
        spread = w * bb - b * b
        if w == 0:
            return 0.0, 0.0
        if spread <= 1e-6 * w * bb:  # one size only: no base, which errs on the safe side
            return 0.0, y / b
        slope = max((w * by - b * y) / spread, 0.0)
        return max((y - slope * b) / w, 0.0), slope

    def bytes(self, samples: int) -> float:
        """Predicted peak bytes of a microbatch."""
        base, slope = self._line()
        return max(base + slope * samples, self._smallest_bytes)

    @property
    def known(self) -> bool:
        """Whether anything was observed."""
        return self._sums[0] > 0

    def samples_within(self, budget: int, most: int) -> int:
        """The largest microbatch that should fit, at least 1; growing at most fourfold beyond what was seen."""
        if not self.known:
            return 1
        base, slope = self._line()
        most = min(most, self._largest * _GROWTH)
        room = (budget - self.error) / self.penalty - base
        fit = int(room / slope) if slope > 0 else most
        return max(1, min(fit, most))

    def wire(self) -> MemoryModel | None:
        """The model as hello and report carry it."""
        if not self.known:
            return None
        base, slope = self._line()
        return MemoryModel(base=base, slope=slope, floor=self._smallest_bytes, error=self.error)
