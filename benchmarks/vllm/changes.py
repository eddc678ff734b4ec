"""Two servers that took turns: by how much one was faster, with the noise that goes with it. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

Taker = TypeVar("Taker")


@dataclass(frozen=True)
class Run:
    """One run of `vllm bench serve`: what it reached, and what the server's processes took."""

    tokens_per_s: float
    cpu_s: float
    page_faults: int


Pair = tuple[Run, Run]
"""A run of the one in question and one of a stock server, one right after the other."""


def changes(rounds: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """One kind's figures."""
    pairs = [pair for seen in rounds for pair in seen]
    return {
        "pairs": len(pairs),
        "change": spread([[faster(p) for p in seen] for seen in rounds]),
        "round_medians": [round(statistics.median(faster(p) for p in seen), 4) for seen in rounds],
        "cpu_per_token_change": spread([[a.cpu_s / b.cpu_s - 1 for a, b in seen] for seen in rounds]),
        "page_faults": [sorted(run.page_faults for run in side) for side in zip(*pairs, strict=True)],
        "runs": [[asdict(a), asdict(b)] for a, b in pairs],
    }


def faster(of: Pair) -> float:
    """Change of throughput from the second of a pair to the first."""
    return of[0].tokens_per_s / of[1].tokens_per_s - 1


def spread(rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    """Median over all, its 95 % interval by the bootstrap within each round (2,000 draws, seeded), and the extremes.

    What one set of servers has against another for as long as they live is not in the interval: the rounds' own
    medians show it.
    """
    draw = random.Random(1)
    values = [v for seen in rounds for v in seen]
    medians = sorted(
        statistics.median([v for seen in rounds for v in draw.choices(seen, k=len(seen))]) for _ in range(2000)
    )
    low, high = medians[49], medians[1949]
    keys = ("median", "low", "high", "min", "max")
    return {
        k: round(v, 4)
        for k, v in zip(keys, (statistics.median(values), low, high, min(values), max(values)), strict=True)
    }


def turn(takers: Sequence[Taker], number: int) -> list[Taker]:
    """The takers in the order of turn number: each comes first as often as any other, and each order as often as its
    reverse. Who ran a moment ago finds its caches warm, so all must run equally often."""
    at = number // 2 % len(takers)
    order = [*takers[at:], *takers[:at]]
    return order[::-1] if number % 2 else order
