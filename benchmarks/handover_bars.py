"""What handover_bench.py promises, and the figures that it is judged by. No torch, no job, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

TIMES = ("mean_ms", "p50_ms", "p99_ms", "max_ms")
FASTER = 5.0
"""Times by which Lull beats discarding always, in the mean and in P99."""
LOST = 0.1
"""Share of the work lost by discarding always that Lull stays below."""
AIMS_MS = {"16MiB": (1.0, 5.0), "64MiB": (2.0, 8.0)}
"""Mean and P99 at most, per size."""


@dataclass(frozen=True)
class Bar:
    """One thing promised; met is None when nothing was measured to judge it by."""

    name: str
    want: str
    got: str
    met: bool | None

    def fields(self) -> dict[str, Any]:
        """As the report has it."""
        return asdict(self)

    def line(self) -> str:
        """As the table has it."""
        word = {True: "met", False: "MISSED", None: "n/a"}[self.met]
        return f"{word:8}{self.name}: {self.got} (want {self.want})"


def figures(values: Sequence[float]) -> dict[str, Any]:
    """n, mean, median, P99 (nearest rank) and max of milliseconds; n alone without values."""
    if not values:
        return {"n": 0}
    ordered = sorted(values)
    rank = -(-99 * len(ordered) // 100)
    return {
        "n": len(ordered),
        "mean_ms": round(sum(ordered) / len(ordered), 3),
        "p50_ms": round(statistics.median(ordered), 3),
        "p99_ms": round(ordered[rank - 1], 3),
        "max_ms": round(ordered[-1], 3),
    }


def judge(methods: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Bar]:
    """Compares slots with next-saved, which discards always, per size."""
    bars: list[Bar] = []
    for size in methods["slots"]:
        aims = AIMS_MS.get(size)
        slots, discard = methods["slots"][size], methods["next-saved"][size]
        for key, name in (("mean_ms", "mean"), ("p99_ms", "P99")):
            bars.append(_faster(f"{size}: {name} against next-saved", slots.get(key), discard.get(key)))
        bars.append(_lost(f"{size}: work lost per order against next-saved", slots, discard))
        seen, over = slots["n"], slots["rebounds"]
        bars.append(Bar(f"{size}: rebounds above the ceiling", "0", str(over), over == 0 if seen else None))
        for key, name, aim in (("mean_ms", "mean", aims[0]), ("p99_ms", "P99", aims[1])) if aims else ():
            bars.append(_within(f"{size}: aim, {name}", slots.get(key), aim))
    return bars


def judge_storm(found: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """No rebound in any number of orders, and little work lost beside discarding always."""
    slots = found.get("slots")
    if slots is None:
        return []
    seen = len(slots["how"]) > 0
    rebounds = Bar(
        f"{slots['orders']} small orders: rebounds above the ceiling",
        "0",
        f"{slots['rebounds']} in {slots['readings']} readings",
        slots["rebounds"] == 0 if seen else None,
    )
    discard = found.get("next-saved")
    if discard is None:
        return [rebounds]
    ours, theirs = ({**f, "n": f["ack"]["n"]} for f in (slots, discard))
    return [rebounds, _lost("small orders: work lost per order against next-saved", ours, theirs)]


def _faster(name: str, ours: float | None, theirs: float | None) -> Bar:
    want = f"≥ {FASTER:g} × faster"
    if ours is None or theirs is None:
        return Bar(name, want, "not measured", None)
    got = f"{theirs / max(ours, 1e-3):.1f} × ({ours:.2f} and {theirs:.2f} ms)"
    return Bar(name, want, got, theirs >= FASTER * ours)


def _lost(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Bar:
    want = f"< {LOST:g} of it"
    mine, other = ours["work_lost_per_order_s"], theirs["work_lost_per_order_s"]
    if not ours["n"] or not theirs["n"] or other <= 0:
        return Bar(name, want, "not measured", None)
    return Bar(name, want, f"{mine / other:.3f} of it ({mine:.4f} and {other:.4f} s)", mine < LOST * other)


def _within(name: str, got: float | None, aim: float) -> Bar:
    want = f"≤ {aim:g} ms"
    return Bar(name, want, "not measured", None) if got is None else Bar(name, want, f"{got:.2f} ms", got <= aim)
