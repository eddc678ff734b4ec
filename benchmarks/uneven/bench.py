"""What unequal microbatches gain beside the same ones on all ranks: two ranks on this machine, one with little memory.

    python benchmarks/uneven/bench.py --python PY --out out/bench/uneven.json [--rounds 5] [--batches 6]

job.py trains the same global batches in three ways that take turns in one run: `same` (both ranks in microbatches of
one sample, which is all that the starved one has room for), `own` (each as large as it can, half of the batch each) and
`shared` (the batch is shared out). Two models: `wide`,
where most of the time is that of the samples, as on a CPU, and `thin`, where a microbatch takes about the same
time whatever its size, as on a GPU that it does not fill. Samples a second are those of both ranks, from raw times.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "trainer" / "python"
WAYS = ("same", "own", "shared")
SIZES = {"thin": 128, "wide": 48}


def run(python: str, shape: str, rounds: int, batches: int) -> dict[str, Any]:
    """One job of two ranks under torchrun; what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "job.json"
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "LULL_SOCKET": "", "OMP_NUM_THREADS": "1"}
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        command = [python, "-m", "lull.run", "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(HERE / "job.py")]
        command += [shape, str(rounds), str(batches), str(SIZES[shape]), str(out)]
        subprocess.run(command, env=env, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples a second, and what each rank did of it; medians over rounds, with the least and the most."""
    rates = [sum(rank["samples"] for rank in one["ranks"]) / one["ranks"][0]["took_s"] for one in runs]
    ranks = [
        {
            "samples_share": share(runs, rank, "samples", of_all=True),
            "idle_share": share(runs, rank, "waited_s"),
            "exchange_share": share(runs, rank, "exchange_s"),
            "microbatch_samples": statistics.median(
                one["ranks"][rank]["samples"] / max(1, one["ranks"][rank]["microbatches"]) for one in runs
            ),
        }
        for rank in (0, 1)
    ]
    return {
        "samples_per_s": {"n": len(rates), "median": statistics.median(rates), "min": min(rates), "max": max(rates)},
        "ranks": ranks,
    }


def share(runs: list[dict[str, Any]], rank: int, what: str, *, of_all: bool = False) -> float:
    """Median part of the time, or of what all ranks did."""
    parts: list[float] = []
    for one in runs:
        whole = sum(r[what] for r in one["ranks"]) if of_all else one["ranks"][rank]["took_s"]
        parts.append(one["ranks"][rank][what] / whole)
    return statistics.median(parts)


def table(shapes: dict[str, Any]) -> str:
    """For docs/TRAINING.md."""
    lines = [
        "| model | way | samples/s (least to most) | beside `same` | rank 0: samples, microbatch | rank 1 | "
        "rank 0 idle | rank 1 idle |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for shape, found in shapes.items():
        for way in WAYS:
            one = found["ways"][way]
            rate = one["samples_per_s"]
            done = [f"{r['samples_share']:.0%}, {r['microbatch_samples']:.1f}" for r in one["ranks"]]
            idle = [f"{r['idle_share']:.0%}" for r in one["ranks"]]
            lines.append(
                f"| {shape} | {way} | {rate['median']:.1f} ({rate['min']:.1f} to {rate['max']:.1f}) | "
                f"{found['ratio'][way]:.2f}× | {' | '.join(done + idle)} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=6)
    args = parser.parse_args()
    shapes: dict[str, Any] = {}
    for shape in SIZES:
        job = run(args.python, shape, args.rounds, args.batches)
        ways = {way: summary([one for one in job["runs"] if one["way"] == way]) for way in WAYS}
        rates = {way: ways[way]["samples_per_s"]["median"] for way in WAYS}
        shapes[shape] = {
            "parameters": job["parameters"],
            "global_batch": SIZES[shape],
            "ways": ways,
            "ratio": {way: rates[way] / rates["same"] for way in WAYS},
            "runs": job["runs"],
        }
    machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"machine": machine, "command": sys.argv, "shapes": shapes}, indent=1) + "\n")
    print(table(shapes))
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
