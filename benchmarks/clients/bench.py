"""What neutral load clients measure through Lull beside what Lull measures of the same requests, on a real vLLM (CPU).

    python benchmarks/clients/bench.py --lull bin/lull --aiperf PYTHON --out out/bench/clients.json [--requests 400]

Needs the environment of `scripts/pyenv full`; PYTHON is that of `scripts/pyenv clients`. Each run has a sidecar of its
own, so that both have seen the same requests; clients take turns. A tiny Llama of random weights answers. Where there
are cores for it, clients have some of their own: what they are late by themselves, they count and Lull does not.
"""

from __future__ import annotations

import argparse
import json
import os
import string
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "vllm")]

import rig  # noqa: E402
from behind import Lull  # noqa: E402
from clients import Figures, Job, aiperf, vllm_bench  # noqa: E402
from cores import on, split  # noqa: E402
from handover_bench import machine  # noqa: E402
from verdict import bars  # noqa: E402


def answers(tokenizer: Path) -> list[int]:
    """The tokens that are one letter each."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    return [vocabulary[letter] for letter in string.ascii_lowercase]


def measure(args: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    model = rig.make_model(work / "tiny")
    one_thread = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    servers, clients_own = split(os.sched_getaffinity(0))
    with on(servers):
        server = rig.Server(work / "server", model, env={"LULL_VLLM": "0", **one_thread})
    clients = {"vllm bench serve": vllm_bench(Path(sys.executable)), "aiperf": aiperf(args.aiperf)}
    runs = []
    with rig.serving(server):
        rig.warm(server, [[2 + (i * 31 + j) % 250 for j in range(64)] for i in range(16)], 16)
        for turn in range(args.turns):
            for name, client in clients.items():
                here = work / f"{turn}-{name.split()[0]}"
                with on(servers):
                    lull = Lull(args.lull, f"http://127.0.0.1:{server.port}", here)
                try:
                    job = Job(lull.url, "tiny", model, here, args.requests, args.at_once, 64, 32, turn, answers(model))
                    with on(clients_own):
                        theirs: Figures = client(job)
                    ours = lull.seen()
                finally:
                    lull.close()
                runs.append({"client": name, "turn": turn, "theirs": theirs, "lull": ours})
                print(f"clients: {name}: {show(theirs)}; lull: {show(ours)}", file=sys.stderr, flush=True)
    return runs


def show(f: Figures) -> str:
    return ", ".join(f"{kind} {v['p50']:.2f} / {v['p99']:.2f} ms (n {v['n']:.0f})" for kind, v in f.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lull", type=Path, required=True, help="the binary")
    parser.add_argument("--aiperf", type=Path, required=True, help="the python of the environment that has aiperf")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=400, help="of a run")
    parser.add_argument("--at-once", type=int, default=2, help="requests open at a time")
    parser.add_argument("--turns", type=int, default=3, help="runs of each client")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lull-clients-") as work:
        runs = measure(args, Path(work))
    found = bars(runs)
    report = {
        "machine": machine(), "command": " ".join(sys.argv), "seconds": round(time.monotonic() - began),
        "runs": runs, "bars": [bar.fields() for bar in found],
    }  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    for bar in found:
        print(bar.line())


if __name__ == "__main__":
    main()
