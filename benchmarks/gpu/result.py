"""The JSON of gpu-check: what must be in it, what counts as failed or missed, and its table."""

from __future__ import annotations

from typing import Any

SCHEMA = "lull.gpu-check/1"
FIGURES = ("n", "p50", "p99", "max")
GIGABYTES = ("1", "5", "10")
FIELDS: dict[str, tuple[str, ...]] = {
    "giveback": GIGABYTES,
    "orders": ("pool", "free_as_seen_by", "order_ms", "how", "freed_less_than_asked", "neighbour"),
    "overhead": ("plain_s", "lull_s", "ratio", "run_ahead"),
    "exact": ("batches", "differing", "orders", "recomputed"),
    "models": ("n", "memory_mape", "step_time_mape"),
}
"""By phase: what its result has."""

OVERHEAD_BAR, MEMORY_BAR = 1.02, 0.03


def problems(result: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; none for a result that can be read."""
    found = [] if result.get("schema") == SCHEMA else [f"schema: got {result.get('schema')!r}, want {SCHEMA!r}"]
    for key, kind in (
        ("rehearsal", bool),
        ("device", str),
        ("torch", str),
        ("seconds", float),
        ("runs", dict),
        ("not_measured", dict),
        ("failed", list),
        ("missed", list),
    ):
        if not isinstance(result.get(key), kind):
            found.append(f"{key}: got {result.get(key)!r}, want a {kind.__name__}")
    for name, run in (result.get("runs") or {}).items():
        wanted = FIELDS.get(run.get("phase"), ("phase",))
        found += [f"runs.{name}.{field}: missing" for field in wanted if field not in run.get("result", {})]
        for field in ("order_ms", "plain_s", "lull_s", *GIGABYTES):
            value = run.get("result", {}).get(field)
            if value is not None and tuple(value) != FIGURES:
                found.append(f"runs.{name}.{field}: got {value!r}, want {', '.join(FIGURES)}")
    return found


def judge(runs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(what must never be and was, which bars were missed and by how much)."""
    failed: list[str] = []
    missed: list[str] = []
    for name, run in runs.items():
        result = run["result"]
        if run["phase"] == "orders" and (bad := result["neighbour"]["failures"]):
            failed.append(f"{name}: the neighbour could not take what was freed, {len(bad)} times: {bad[0]}")
        if run["phase"] == "orders" and not result["order_ms"]["n"]:
            failed.append(f"{name}: no order was met")
        if run["phase"] == "exact" and result["differing"]:
            failed.append(f"{name}: {result['differing']} of {result['batches']} batches differ in bits")
        if run["phase"] == "overhead" and run["bar"] and result["ratio"] > OVERHEAD_BAR:
            missed.append(f"{name}: {result['ratio']:.3f} of plain accumulation, bar {OVERHEAD_BAR}")
        if run["phase"] == "models" and result["memory_mape"] > MEMORY_BAR:
            missed.append(f"{name}: memory {result['memory_mape']:.1%} off in the mean, bar {MEMORY_BAR:.0%}")
    return failed, missed


def _say(figure: dict[str, Any]) -> str:
    if not figure["n"]:
        return "not measured"
    return f"{figure['p50']:.2f} / {figure['p99']:.2f} / {figure['max']:.2f} (n={figure['n']})"


def table(result: dict[str, Any]) -> str:
    """For people: a line a figure."""
    label = "REHEARSAL ON A CPU, says nothing about GPUs: " if result["rehearsal"] else ""
    lines = [f"{label}gpu-check on {result['device']}, torch {result['torch']}, {result['seconds']:.0f} s", ""]
    lines += ["| run | figure | P50 / P99 / most |", "|---|---|---|"]
    for name, run in result["runs"].items():
        found = run["result"]
        if run["phase"] == "giveback":
            lines += [f"| {name} | {g} {run['unit']}, ms | {_say(found[g])} |" for g in GIGABYTES]
        elif run["phase"] == "orders":
            taken = found["neighbour"]
            lines.append(f"| {name} | order to free, ms ({found['free_as_seen_by']}) | {_say(found['order_ms'])} |")
            lines.append(f"| {name} | met by | {found['how']}; short {found['freed_less_than_asked']} |")
            lines.append(f"| {name} | neighbour: failed of taken | {len(taken['failures'])} of {taken['takes']} |")
        elif run["phase"] == "overhead":
            lines.append(f"| {name} | batch, s: plain | {_say(found['plain_s'])} |")
            lines.append(f"| {name} | batch, s: Lull, ratio {found['ratio']:.3f} | {_say(found['lull_s'])} |")
        elif run["phase"] == "exact":
            lines.append(
                f"| {name} | batches that differ | {found['differing']} of {found['batches']} under {found['orders']} "
                f"orders, {found['recomputed']} blocks computed again |"
            )
        elif run["phase"] == "models":
            lines.append(
                f"| {name} | mean error: memory, step time | {found['memory_mape']:.1%}, {found['step_time_mape']:.1%} "
                f"(n={found['n']}) |"
            )
    for word, items in (("failed", result["failed"]), ("bar missed", result["missed"])):
        lines += [f"{word}: {item}" for item in items]
    lines += [f"not measured: {name}: {why}" for name, why in result["not_measured"].items()]
    return "\n".join(lines)
