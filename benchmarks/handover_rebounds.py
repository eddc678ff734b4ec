"""Does a job ever hold more than it has acked? Counted over many small orders, without a single time.

    python benchmarks/handover_rebounds.py --python PY --out out/bench/rebounds.json [--orders 10000] [--shapes medium]

The storm of handover_bench.py alone (handover_storm.py), for each model size: orders of Lull, and a tenth as many of
`next-saved`, which discards the microbatch always, to compare the work lost with. It counts rebounds, orders without
an ack and work lost, so it may run on a busy machine; ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import handover_bars
import handover_bench
import handover_storm
from handover_link import Job

MIB = 1 << 20


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--out", default="out/bench/rebounds.json")
    parser.add_argument("--orders", type=int, default=10000, help="of Lull, for each model size")
    parser.add_argument("--max-seconds", type=float, default=0, help="end each count then; 0: never")
    parser.add_argument("--batch", type=int, default=64, help="samples in the global batch")
    parser.add_argument("--budget-mib", type=int, default=48, help="what orders are taken from")
    parser.add_argument("--shapes", type=handover_bench.shape_names, default=[handover_bench.SHAPE])
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def count(args: argparse.Namespace, shape: str) -> dict[str, dict[str, Any]]:
    """Both methods' storms on one job of a model size, the times of its acks left out."""
    width, layers = handover_bench.SHAPES[shape]
    script = [str(Path(__file__).with_name("handover_job.py")), str(args.batch), str(width), str(layers)]
    with tempfile.TemporaryDirectory() as folder:
        job = Job(args.python, script, args.budget_mib * MIB, folder, None)
        found = {
            method: handover_storm.run_storm(job, method, orders, args.budget_mib * MIB, args.seed, args.max_seconds)
            for method, orders in (("slots", args.orders), ("next-saved", args.orders // 10))
            if orders
        }
        job.close()
    return {method: {**storm, "ack": {"n": storm["ack"]["n"]}} for method, storm in found.items()}


def line(method: str, storm: dict[str, Any]) -> str:
    """One method for people."""
    ways = ", ".join(f"{n} {how}" for how, n in storm["how"].items())
    return (
        f"{method:11}{storm['orders']:>7} orders ({ways}; {storm['without_ack']} without an ack): {storm['rebounds']} "
        f"rebounds above the ceiling in {storm['readings']} readings over {storm['watched_s']:.0f} s, in which the job "
        f"had a core for {storm['ran_meanwhile_s']:.0f}; work lost {storm['work_lost_per_order_s']:.5f} s an order"
    )


def main() -> None:
    """Counts each model size, judges, and writes the report."""
    args = options()
    found = {shape: count(args, shape) for shape in args.shapes}
    bars = {shape: handover_bars.judge_storm(storms) for shape, storms in found.items()}
    report = {
        "command": " ".join(["python", "benchmarks/handover_rebounds.py", *sys.argv[1:]]),
        "machine": handover_bench.machine(),
        "bars": {shape: [bar.fields() for bar in some] for shape, some in bars.items()},
        "shapes": found,
    }
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for shape, storms in found.items():
        print(f"\n{shape}")
        print("\n".join([*(line(m, s) for m, s in storms.items()), *(bar.line() for bar in bars[shape])]))
    print(f"wrote {out}")
    if any(bar.met is False for some in bars.values() for bar in some):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
