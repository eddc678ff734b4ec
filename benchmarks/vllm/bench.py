"""What lull-vllm costs and how fast it is, on real vLLM servers (CPU), one with the plugin and two without.

    python benchmarks/vllm/bench.py --out out/bench/vllm.json [--orders 30] [--pairs 100] [--rounds 4]

Needs the environment of `scripts/pyenv full`. The model is a tiny Llama of random weights; one thread a server. The
sidecar is the few lines of engine/vllm_plugin/tests/fake_sidecar.py: what is timed is the plugin, not `lull serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import measure  # noqa: E402
import rig  # noqa: E402
import throughput  # noqa: E402
from handover_bars import Bar  # noqa: E402
from handover_bench import machine  # noqa: E402

SIZES_MIB = (16, 64, 256)
POOL_MIB = 512
COST = 0.01
"""Share of the throughput that the plugin may cost."""
Figures = TypeVar("Figures")


def bars(report: dict[str, Any]) -> list[Bar]:
    """What was promised, against what was measured."""
    found: list[Bar] = []
    for size, seen in report["release"].items():
        limit, got = seen["bar_ms"], seen["p99_ms"]
        found.append(
            Bar(
                f"order -> {size} seen free, P99",
                f"<= {limit} ms",
                f"{got} ms (P50 {seen['p50_ms']}, n {seen['n']})",
                got <= limit,
            )
        )
    w = report["withdrawal"]
    found.append(
        Bar(
            "order -> every free block above it withdrawn",
            "<= 1 step",
            f"at most {w['max_steps']}, {w['free_blocks_left_max']} left (n {w['n']})",
            w["max_steps"] <= 1 and w["free_blocks_left_max"] == 0,
        )
    )
    a = report["age"]
    step, old = a["between_steps"]["max_ms"], a["age"]["max_ms"]
    found.append(
        Bar(
            "age of the page",
            f"<= one step ({step} ms at most)",
            f"{old} ms at most (P50 {a['age']['p50_ms']})",
            old <= step + 1,
        )
    )
    seen = report["throughput"]["full"]
    t, noise = seen["change"], report["throughput"]["twins"]["change"]
    got = (
        f"{t['median']:+.2%} (95 % interval {t['low']:+.2%} to {t['high']:+.2%}, {seen['pairs']} pairs; "
        f"two stock ones {noise['median']:+.2%}, {noise['low']:+.2%} to {noise['high']:+.2%})"
    )
    found.append(Bar("throughput against a vLLM without the plugin", f">= -{COST:.0%}", got, t["median"] >= -COST))
    share = report["idle"]["idle_pool_share_max"]
    found.append(Bar("idle KV memory when told to", "<= 5 % of the pool", f"{share:.1%}", share <= 0.05))
    return found


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bench/vllm.json"))
    parser.add_argument("--orders", type=int, default=30, help="orders of each size, idle engine")
    parser.add_argument("--withdrawals", type=int, default=200, help="orders with 8 streams running")
    parser.add_argument("--pairs", type=int, default=100, help="pairs of throughput runs, over all rounds")
    parser.add_argument("--rounds", type=int, default=4, help="times that the servers of these pairs are started anew")
    parser.add_argument("--prompts", type=int, default=16, help="requests of a throughput run")
    parser.add_argument("--bursts", type=int, default=20, help="bursts of each kind for the price of an idle pool")
    return parser.parse_args()


def run(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """All measurements: the times and the price in one set of servers, the throughput in others."""
    model = rig.make_model(work / "tiny")
    report: dict[str, Any] = {}
    on, off, twin = servers(work / "times", model)
    with rig.serving(on, off, twin):
        sidecar = rig.FakeSidecar(on.directory)
        with rig.alone(off, twin):
            report["release"] = told(measure.release(on, sidecar, SIZES_MIB, args.orders), "release")
            report["withdrawal"] = told(measure.withdrawal(on, sidecar, args.withdrawals), "withdrawal")
            report["age"] = told(measure.age(on, sidecar, 15), "age")
        with rig.alone(twin):
            report["idle"] = told(measure.idle_price(on, sidecar, off, args.bursts), "idle")
        sidecar.close()
    load = rig.Load(model, work / "load.log")
    try:
        each = max(1, args.pairs // args.rounds)
        rounds = []
        for number in range(args.rounds):
            on, off, twin = servers(work / f"round{number}", model)
            with rig.serving(on, off, twin):
                sidecar = rig.FakeSidecar(on.directory)
                seen = throughput.one_round(on, off, twin, sidecar, load, each, args.prompts, number * each)
                rounds.append(told(seen, f"throughput, round {number + 1} of {args.rounds},"))
                sidecar.close()
        report["throughput"] = throughput.summed(rounds)
    finally:
        load.close()
    return report


def servers(work: Path, model: Path) -> tuple[rig.Server, rig.Server, rig.Server]:
    """One with the plugin, and two without."""
    pool = ["--kv-cache-memory-bytes", str(POOL_MIB << 20)]
    env = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    stock = {**env, "LULL_VLLM": "0"}
    return (
        rig.Server(work / "on", model, *pool, env=env),
        rig.Server(work / "off", model, *pool, env=stock),
        rig.Server(work / "twin", model, *pool, env=stock),
    )


def told(figures: Figures, name: str) -> Figures:
    """Shows progress."""
    print(f"bench-vllm: {name} measured", file=sys.stderr, flush=True)
    return figures


def main() -> None:
    """Measures, judges and writes the report."""
    args = options()
    began, busy = time.time(), machine()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        report = run(args, Path(folder))
    judged = bars(report)
    command = " ".join(["python", "benchmarks/vllm/bench.py", *sys.argv[1:]])
    head = {"command": command, "machine": busy, "pool_mib": POOL_MIB, "seconds": round(time.time() - began, 1)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({**head, "bars": [bar.fields() for bar in judged], **report}, indent=1) + "\n")
    for bar in judged:
        print(bar.line())
    for name, seen in report["throughput"].items():
        t, (ours, theirs) = seen["change"], seen["page_faults"]
        faults = f"page faults a run {ours[0]} to {ours[-1]} and {theirs[0]} to {theirs[-1]}"
        rounds = " ".join(f"{m:+.2%}" for m in seen["round_medians"])
        print(f"        {name}: {t['median']:+.2%} ({t['low']:+.2%} to {t['high']:+.2%}; rounds {rounds}), {faults}")
    for name in ("kept", "default", "told"):
        row = report["idle"][name]
        first = f"TTFT mean {row['ttft']['mean_ms']}, P99 {row['ttft']['p99_ms']} ms"
        print(f"        {name}: prefix hit rate {row['hit_rate']:.1%}, {first}")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
