"""`make gpu-check`: what Lull does on a GPU, in ten minutes and without a network; docs/GPU.md explains the figures.

    python benchmarks/gpu/check.py --out out/gpu/check.json [--rehearse] [--only KEY ...]

Each run is a process of its own, since a process has one arena and a failure must not take the rest along. It needs
PyTorch and Lull's sources. It ends with 0 when all was measured and nothing failed, 1 when something failed or was not
measured, 3 where PyTorch finds no GPU. `--rehearse` runs the same on the CPU with small sizes: a test of the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from result import SCHEMA, judge, problems, table

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "trainer" / "python"
LONGEST_S = 590.0
NO_GPU = 3


@dataclass(frozen=True)
class Run:
    """One process."""

    key: str
    phase: str
    limit_s: float
    env: dict[str, str] = field(default_factory=dict)
    bar: bool = False
    """Whether this is the run that a bar is about: sweeps are not."""


def plan(rehearse: bool) -> list[Run]:
    """What matters most first: what time does not suffice for is named as not measured."""
    handles = ("32MiB",) if rehearse else ("32MiB", "8MiB", "2MiB", "128MiB")
    depths = ("1",) if rehearse else ("1", "4", "8", "0")
    runs = [
        Run("exact", "exact", 90),
        Run("orders", "orders", 150),
        Run("overhead", "overhead", 90, bar=True),
        Run("models", "models", 60),
        *(Run(f"giveback {m}", "giveback", 60, {"LULL_CHECK_MECHANISM": m}) for m in ("empty_cache", "discard")),
    ]
    for handle in handles:
        env = {"LULL_CHECK_MECHANISM": "arena", "LULL_CUDA_HANDLE": handle}
        runs.append(Run(f"giveback arena {handle}", "giveback", 60, env))
    for depth in depths:
        env = {"LULL_CUDA_RUN_AHEAD": depth}
        runs.append(Run(f"overhead run-ahead {depth}", "overhead", 60, env))
        runs.append(Run(f"orders run-ahead {depth}", "orders", 60, {**env, "LULL_CHECK_ORDERS": "60"}))
    return runs


def one(run: Run, rehearse: bool, limit_s: float, folder: Path) -> dict[str, Any] | str:
    """Its result, or why there is none."""
    out = folder / "phase.json"
    out.unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "LULL_SOCKET": "", "LULL_LOG": "warning", **run.env}
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may differ from run to run
    start = [sys.executable, "-m", "lull.run"] if rehearse else [sys.executable]
    command = [*start, str(HERE / "phase.py"), run.phase, str(out), *(["--rehearse"] if rehearse else [])]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within {limit_s:.0f} s"
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()
        return f"ended with {done.returncode}: {last[-1] if last else 'no output'}"
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def measure(runs: list[Run], rehearse: bool, about: dict[str, str]) -> dict[str, Any]:
    """All runs, or as many as time allows."""
    began = time.monotonic()
    done: dict[str, Any] = {}
    without: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            left = LONGEST_S - (time.monotonic() - began)
            print(f"gpu-check: {run.key}", file=sys.stderr, flush=True)
            limit_s = run.limit_s * (2 if rehearse else 1)  # a CPU may be busy with other work
            found = one(run, rehearse, min(limit_s, left), Path(folder)) if left > 5 else "no time was left"
            if isinstance(found, str):
                without[run.key] = found
            else:
                unit = "x 16 MiB" if rehearse else "GiB"
                done[run.key] = {"phase": run.phase, "env": run.env, "bar": run.bar, "unit": unit, "result": found}
    failed, missed = judge(done)
    return {
        "schema": SCHEMA,
        "rehearsal": rehearse,
        **about,
        "seconds": time.monotonic() - began,
        "runs": done,
        "not_measured": without,
        "failed": failed,
        "missed": [] if rehearse else missed,
    }


def look() -> dict[str, str] | str:
    """The GPU and the PyTorch that would be measured, or why there is none."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no CUDA device"
    return {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}


def main() -> int:
    """Measures, prints the table, writes the JSON; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--only", nargs="*", help="keys of runs, as they are printed")
    args = parser.parse_args()
    about = look()
    if args.rehearse:
        import torch

        about = {"device": "none: a rehearsal on the CPU", "torch": torch.__version__}
    if isinstance(about, str):
        print(f"gpu-check: {about}, so nothing was measured; --rehearse tries the script on the CPU", file=sys.stderr)
        return NO_GPU
    runs = [run for run in plan(args.rehearse) if args.only is None or run.key in args.only]
    result = measure(runs, args.rehearse, about)
    wrong = problems(result)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1))
    print(table(result))
    for problem in wrong:
        print(f"gpu-check: the result is not readable: {problem}", file=sys.stderr)
    return 1 if wrong or result["failed"] or result["not_measured"] else 0


if __name__ == "__main__":
    sys.exit(main())
