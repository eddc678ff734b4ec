"""How fast does memory come back from a running PyTorch job? Four methods, interleaved in one run.

    python benchmarks/handover_bench.py --python PY --out out/bench/handover.json [--orders 300] [--max-seconds S]

The controller (this process, no torch in it) listens on a Unix socket as the sidecar does, orders the job
(handover_job.py under lull.run) to hold 16 or 64 MiB less than it holds at a random moment of its work, and
reads the job's own RssAnon + RssShmem until they are gone: decision -> device confirms. An order counts if
at least 95 % of what it asked was physically freed; the rest are counted apart. Times are never trimmed.

By model size (`--shapes small,medium,large`), bytes (`--sizes-mib 16,64`) and way (how each ack says it was met).
`--storm N` sends N small orders more, of 1 to 8 MiB, and counts every reading above what was acked (handover_storm.py);
bench-handover's own 10,000 are `--storm 10000`.

Methods: `slots` is Lull. `next-saved` raises at the next saved tensor and discards the microbatch, always,
as SIRIUS does. `microbatch` and `batch` wait for the end of the running microbatch or global batch.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import handover_bars
import handover_storm
from handover_bars import figures
from handover_link import Job

MIB = 1 << 20
METHODS = ("slots", "next-saved", "microbatch", "batch")
SIZES_MIB = (16, 64)
SHAPES = {"small": (128, 2), "medium": (256, 4), "large": (512, 6)}
"""Width and layers of the job's model, by name."""
SHAPE = "medium"
"""The one whose figures stand at the top of the report."""
HOLD_S = 0.03
"""How long the order stands before the memory is granted back; rebounds are looked for meanwhile."""


class Cell:
    """What was measured for one method and size."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.ack_ms: list[float] = []
        self.how: dict[str, int] = {}
        self.by_how: dict[str, list[float]] = {}
        self.short = 0
        self.rebounds = 0
        self.worst_rebound = 0
        self.lost_s = 0.0
        self.recompute_s = 0.0
        self.discards = 0
        self.orders = 0
        self.held: list[int] = []

    def summary(self) -> dict[str, Any]:
        lost = self.lost_s + self.recompute_s
        return {
            **figures(self.ms),
            "ack": figures(self.ack_ms),
            "by_how": {how: figures(ms) for how, ms in sorted(self.by_how.items())},
            "orders": self.orders,
            "held_before_bytes_mean": sum(self.held) // max(1, len(self.held)),
            "not_freed": self.short,
            "how": self.how,
            "rebounds": self.rebounds,
            "worst_rebound_bytes": self.worst_rebound,
            "work_lost_sample_s": round(lost, 4),
            "discarded_s": round(self.lost_s, 4),
            "recomputed_s": round(self.recompute_s, 4),
            "work_lost_per_order_s": round(lost / max(1, self.orders), 5),
            "discards": self.discards,
        }


class Outside:
    """What the job holds outside its arena, in bytes: the 90th percentile of the last readings.

    The arena counts a unit when it hands it out, the kernel when it is touched: one reading is too low by what an
    operator has not written yet, and an order made from it would ask for less than it says.
    """

    def __init__(self, last: int = 64) -> None:
        self._seen: collections.deque[int] = collections.deque(maxlen=last)

    def read(self, stats: dict[str, Any]) -> int:
        """Takes a reading and answers."""
        self._seen.append(stats["bytes"] - stats["resident"])
        return sorted(self._seen)[9 * len(self._seen) // 10]


def one_order(job: Job, cell: Cell, size: int, outside: int, limit_base: int, timeout: float) -> None:
    """Orders `size` bytes away now, and watches."""
    before = job.rss()
    target = before - outside - size
    start = time.perf_counter()
    epoch = job.order(target)
    gone = acked = None
    how = ""
    while (now := time.perf_counter()) - start < timeout and (gone is None or acked is None):
        if gone is None and job.rss() <= before - 0.95 * size:
            gone = time.perf_counter()
        for ack in job.acks():
            if ack.epoch == epoch:
                acked, how = time.perf_counter(), ack.how
    cell.orders += 1
    cell.held.append(before - outside)
    cell.how[how or "none"] = cell.how.get(how or "none", 0) + 1
    if gone is None or acked is None:
        cell.short += 1
        return
    took = (max(gone, acked) - start) * 1e3
    cell.ms.append(took)
    cell.ack_ms.append((acked - start) * 1e3)
    cell.by_how.setdefault(how, []).append(took)
    end = now + HOLD_S
    above = 0
    while time.perf_counter() < end:
        above = max(above, job.rss() - (limit_base + target))
        time.sleep(0.0005)
    cell.rebounds += above > 0
    cell.worst_rebound = max(cell.worst_rebound, above)


def run_cell(
    job: Job, cell: Cell, method: str, size: int, count: int, budget: int, draw: random.Random, outside: Outside
) -> None:
    """`count` orders of one method and size, each at a random moment after the memory was taken again."""
    first = job.tell(f"release {method}")
    micro_s = first["microbatch_ms"] / 1e3
    timeout = 3 + 3 * first["batch_ms"] / 1e3
    job.order(budget)
    for _ in range(count):
        regrown_by = time.monotonic() + 6 * micro_s
        while job.rss() - first["baseline"] - first["floor"] < 0.8 * budget and time.monotonic() < regrown_by:
            job.rest(0.01)
        job.rest(draw.uniform(0.1, 1.1) * micro_s)
        now = job.tell("stats")
        one_order(job, cell, size, outside.read(now), now["baseline"] + now["floor"], timeout)
        job.order(budget)
    last = job.tell("stats")
    cell.lost_s += last["lost_s"] - first["lost_s"]
    cell.recompute_s += last["recompute_s"] - first["recompute_s"]
    cell.discards += last["discards"] - first["discards"]


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "transparent_hugepage": huge.read_text().strip() if huge.exists() else "none",
        "load_1m": os.getloadavg()[0],
    }


def table(summaries: dict[str, dict[str, dict[str, Any]]], bars: list[handover_bars.Bar]) -> str:
    """The results for people, and what was promised of them."""
    rows = [
        f"{'method':12}{'size':>7}{'n':>6}{'mean':>10}{'P50':>10}{'P99':>10}{'max ms':>10}"
        f"{'lost s/order':>14}{'rebounds':>10}{'not freed':>11}"
    ]
    for method, sizes in summaries.items():
        for size, s in sizes.items():
            times = "".join(f"{s[k]:>10.2f}" if s["n"] else f"{'-':>10}" for k in handover_bars.TIMES)
            rows.append(
                f"{method:12}{size:>7}{s['n']:>6}{times}"
                f"{s['work_lost_per_order_s']:>14.4f}{s['rebounds']:>10}{s['not_freed']:>11}"
            )
    return "\n".join([*rows, "", *(bar.line() for bar in bars)])


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch")
    parser.add_argument("--out", default="out/bench/handover.json")
    parser.add_argument("--orders", type=int, default=300, help="orders that count, per method and size")
    parser.add_argument("--microbatch-orders", type=int, default=0, help="the same for microbatch; 0: as many")
    parser.add_argument("--batch-orders", type=int, default=0, help="the same for batch; 0: as many")
    parser.add_argument("--max-seconds", type=float, default=0, help="end after the chunk in progress then; 0: never")
    parser.add_argument("--chunk", type=int, default=5, help="orders of one method before the next takes its turn")
    parser.add_argument("--batch", type=int, default=64, help="samples in the global batch")
    parser.add_argument("--budget-mib", type=int, default=320)
    parser.add_argument("--shapes", type=shape_names, default=[SHAPE], help=f"of {','.join(SHAPES)}; default {SHAPE}")
    parser.add_argument("--sizes-mib", type=_sizes, default=[*SIZES_MIB], help="bytes that orders take, in MiB")
    parser.add_argument("--storm", type=int, default=0, help="small orders besides, a tenth as many for next-saved")
    parser.add_argument("--storm-budget-mib", type=int, default=48, help="what they are taken from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pin", action="store_true", help="job on the last core, controller on the others")
    return parser.parse_args()


def shape_names(text: str) -> list[str]:
    """The model sizes of an option."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SHAPES]:
        raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, want some of {', '.join(SHAPES)}")
    return names


def _sizes(text: str) -> list[int]:
    sizes = [int(size) if size.isdigit() else 0 for size in text.split(",")]
    if not all(sizes):
        raise argparse.ArgumentTypeError(f"got {text!r}, want numbers of MiB above 0, such as 16,64")
    return sizes


Cells = dict[tuple[str, int], Cell]


def wanted(args: argparse.Namespace) -> dict[str, int]:
    """Orders that count, per size, of each method."""
    own = {"microbatch": args.microbatch_orders, "batch": args.batch_orders}
    return {m: own.get(m, 0) or args.orders for m in METHODS}


def run_all(job: Job, cells: Cells, args: argparse.Namespace, began: float, outside: Outside) -> bool:
    """A few orders of each cell in turn until all have enough; False when the time was over before."""
    draw, want = random.Random(args.seed), wanted(args)
    while open_cells := [k for k, c in cells.items() if c.orders < 3 * want[k[0]] and len(c.ms) < want[k[0]]]:
        draw.shuffle(open_cells)
        for method, size in open_cells:
            if args.max_seconds and time.time() - began > args.max_seconds:
                return False
            cell = cells[(method, size)]
            count = min(args.chunk, want[method] - len(cell.ms))
            run_cell(job, cell, method, size * MIB, count, args.budget_mib * MIB, draw, outside)
        done = sum(len(c.ms) for c in cells.values())
        print(f"handover_bench: {done} orders in {time.time() - began:.0f} s", file=sys.stderr, flush=True)
    return True


def main() -> None:
    """Runs all cells of each model size, judges and writes the report."""
    args = options()
    began = time.time()
    found = {shape: run_shape(args, shape, began) for shape in args.shapes}
    top = found.get(SHAPE) or found[args.shapes[0]]
    report = {
        "command": " ".join(["python", "benchmarks/handover_bench.py", *sys.argv[1:]]),
        "machine": machine(),
        **top,
        "seconds": round(time.time() - began, 1),
        "orders_wanted": wanted(args),
        "shapes": found,
    }
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for shape, one in found.items():
        print(f"\n{shape}: {one['job']['model']}, {one['job']['parameters']} parameters")
        print(table(one["methods"], [handover_bars.Bar(**bar) for bar in one["bars"]]))
        for method, storm in one["storm"].items():
            print(handover_storm.line(method, storm))
        if not one["complete"]:
            print(f"ended after --max-seconds {args.max_seconds:g}: n is what the table says, not what was asked for")
    print(f"wrote {out}")


def run_shape(args: argparse.Namespace, shape: str, began: float) -> dict[str, Any]:
    """All cells of one model size, and its storm."""
    cells: Cells = {(m, s): Cell() for m in METHODS for s in args.sizes_mib}
    cores = sorted(os.sched_getaffinity(0))
    pin = args.pin and len(cores) > 1
    width, layers = SHAPES[shape]
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        script = [str(Path(__file__).with_name("handover_job.py")), str(args.batch), str(width), str(layers)]
        job = Job(args.python, script, args.budget_mib * MIB, folder, cores[-1] if pin else None)
        if pin:
            os.sched_setaffinity(0, cores[:-1])
        job.order(args.budget_mib * MIB)
        job.rest(6)
        undisturbed = job.tell("stats")
        outside = Outside()
        for _ in range(64):
            outside.read(job.tell("stats"))
            job.rest(0.02)
        complete = run_all(job, cells, args, started if args.max_seconds else began, outside)
        # Small orders are told from what the job holds: little, so that they bite.
        storm = {
            m: handover_storm.run_storm(job, m, n, args.storm_budget_mib * MIB, args.seed, args.max_seconds)
            for m, n in (("slots", args.storm), ("next-saved", args.storm // 10))
            if n
        }
        last = job.tell("stats")
        job.close()
        if pin:
            os.sched_setaffinity(0, cores)
    summaries = {m: {f"{s}MiB": cells[(m, s)].summary() for s in args.sizes_mib} for m in METHODS}
    bars = [*handover_bars.judge(summaries), *handover_bars.judge_storm(storm)]
    return {
        "job": {
            "model": f"byte-level GPT d{width} L{layers} H4 T128, one torch thread",
            "parameters": undisturbed["parameters"],
            "native_arena": undisturbed["arena"],
            "global_batch": args.batch,
            "budget_bytes": args.budget_mib * MIB,
            "microbatch": undisturbed["microbatch"],
            "microbatch_ms_mean": round(undisturbed["microbatch_ms"], 1),
            "batch_ms_mean": round(undisturbed["batch_ms"], 1),
            "arena": last["counters"],
            "floor_requests_refused": job.refused,
        },
        "complete": complete,
        "bars": [bar.fields() for bar in bars],
        "methods": summaries,
        "storm": storm,
    }


if __name__ == "__main__":
    main()
