"""Does training under a storm of orders converge to the same? Real PyTorch on CPU, scikit-learn's digits.

    python benchmarks/convergence/bench.py --out out/bench/convergence.json [--seeds 5] [--epochs 30]

Needs the environment of `scripts/pyenv convergence`. For each model and seed the same job runs twice: undisturbed under
one budget, and under orders that come at random times for random budgets, from a few samples' to the whole. Data order,
the weights' start and epochs are the same; what differs is how batches are cut and when memory goes. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from handover_bars import Bar  # noqa: E402
from handover_bench import machine  # noqa: E402
from handover_link import Job  # noqa: E402

MODELS = ("cnn", "transformer")
MIB = 1 << 20
BUDGET = 24 * MIB
LEAST = MIB
BETWEEN_S = 0.02
"""Mean time between two orders of a storm: several in a batch."""
APART = 0.01
"""How far the mean final accuracies may be apart."""


def run(model: str, seed: int, epochs: int, storm: bool) -> dict[str, Any]:
    """One job to its end; the storm's times and budgets follow from the seed."""
    chooser = random.Random(f"{model} {seed}")
    orders = 0
    with tempfile.TemporaryDirectory() as folder:
        script = [str(HERE / "job.py"), model, str(seed), str(epochs)]
        job = Job(sys.executable, script, BUDGET, folder, None)
        try:
            job.order(BUDGET)
            while job.process.poll() is None:
                try:
                    job.rest(chooser.expovariate(1 / BETWEEN_S) if storm else 0.05)
                    if storm:
                        job.order(chooser.randrange(LEAST, BUDGET))
                        orders += 1
                except (SystemExit, OSError):  # the job has ended and closed its connection
                    job.process.wait(30)
            assert job.process.stdout is not None
            text = job.process.stdout.read()
        finally:
            job.process.kill()  # nothing where it has ended
        if job.process.returncode:
            raise SystemExit(f"convergence: {' '.join(script)}: exit status {job.process.returncode}, want 0")
    line: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return {**line, "orders": orders}


def compare(model: str, seeds: int, epochs: int) -> dict[str, Any]:
    """Both arms of every seed, taking turns at going first."""
    arms: dict[str, list[dict[str, Any]]] = {"undisturbed": [], "storm": []}
    for seed in range(seeds):
        for storm in (False, True) if seed % 2 else (True, False):
            began = time.monotonic()
            found = run(model, seed, epochs, storm)
            arms["storm" if storm else "undisturbed"].append({"seed": seed, **found})
            kind = f"storm of {found['orders']} orders" if storm else "undisturbed"
            took = time.monotonic() - began
            print(f"convergence: {model}, seed {seed}, {kind}: {found['accuracy'][-1]:.4f} in {took:.0f} s", flush=True)
    last = {arm: [found["accuracy"][-1] for found in runs] for arm, runs in arms.items()}
    means = {arm: statistics.mean(values) for arm, values in last.items()}
    return {
        "mean": {arm: round(value, 4) for arm, value in means.items()},
        "spread": {arm: round(statistics.stdev(values), 4) if seeds > 1 else 0.0 for arm, values in last.items()},
        "apart": round(abs(means["storm"] - means["undisturbed"]), 4),
        "runs": arms,
    }


def plot(report: dict[str, Any], path: Path) -> None:
    """Every seed's curve, by model."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(report), figsize=(9, 3.4), sharey=True)
    for axis, (model, found) in zip(axes, report.items(), strict=True):
        for arm, color in (("undisturbed", "#555b66"), ("storm", "#0072b2")):
            for number, one in enumerate(found["runs"][arm]):
                epochs = range(1, len(one["accuracy"]) + 1)
                axis.plot(epochs, one["accuracy"], color=color, lw=1, alpha=0.8, label=None if number else arm)
        axis.set_title(f"{model}: {found['mean']['undisturbed']:.4f} and {found['mean']['storm']:.4f}", fontsize=10)
        axis.set_xlabel("epoch")
        axis.grid(color="#e3e6ea")
    axes[0].set_ylabel("test accuracy")
    axes[0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Runs, judges, writes and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/bench/convergence.json"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    began, busy = time.time(), machine()
    report = {model: compare(model, args.seeds, args.epochs) for model in MODELS}
    bars = [
        Bar(
            f"{model}: final accuracy, mean of {args.seeds} seeds, storm against undisturbed",
            f"within {APART:.0%}",
            f"{found['mean']['storm']:.4f} against {found['mean']['undisturbed']:.4f}",
            found["apart"] <= APART,
        )
        for model, found in report.items()
    ]
    command = " ".join(["python", "benchmarks/convergence/bench.py", *sys.argv[1:]])
    head = {"command": command, "machine": busy, "seconds": round(time.time() - began, 1)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({**head, "bars": [bar.fields() for bar in bars], **report}, indent=1) + "\n")
    plot(report, args.out.with_suffix(".svg"))
    for bar in bars:
        print(bar.line())
    print(f"wrote {args.out} and {args.out.with_suffix('.svg')}")


if __name__ == "__main__":
    main()
