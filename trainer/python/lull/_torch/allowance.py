"""What a budget leaves for the pool while bytes that no floor covers lie outside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """Bytes."""

    excess: int = 0
    """Held outside the pool, above the floor: the device shows them as activation memory."""
    least: int = 0
    """What the smallest microbatch needs. The excess takes nothing of it, since training would stop for good."""

    def of(self, budget: int) -> int:
        """The pool's share of a budget."""
        return max(budget - self.excess, min(budget, self.least))

    def held(self, budget: int) -> int:
        """What the device may show above the floor under a budget: more than it where the least takes effect."""
        return self.of(budget) + self.excess
