"""Whether a client and Lull have seen the same. No server, no client, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from handover_bars import Bar

ABSOLUTE_MS, RELATIVE = 2.0, 0.05
"""How far a client's figure and Lull's may lie apart: either will do."""


def agree(theirs: float, ours: float) -> bool:
    return abs(theirs - ours) <= max(ABSOLUTE_MS, RELATIVE * theirs)


def bars(runs: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """One for each client, kind and quantile: the run that is farthest off."""
    found = []
    for client in dict.fromkeys(run["client"] for run in runs):
        of = [run for run in runs if run["client"] == client]
        for kind in ("ttft", "tbt"):
            for q in ("p50", "p99"):
                pairs = [(run["theirs"][kind][q], run["lull"][kind][q]) for run in of]
                theirs, ours = max(pairs, key=lambda pair: abs(pair[0] - pair[1]))
                found.append(
                    Bar(
                        f"{client}, {kind} {q.upper()}",
                        f"within {ABSOLUTE_MS:g} ms or {RELATIVE:.0%}",
                        f"{theirs:.2f} and {ours:.2f} ms by Lull (farthest of {len(of)} runs)",
                        all(agree(*pair) for pair in pairs),
                    )
                )
    return found
