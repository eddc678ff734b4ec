"""`vllm bench serve` as a child that stays: one line of JSON in, one run, one line of JSON out.

The tool's own code does the load and the measuring; staying saves its imports, which take longer than a run.
A line is {"port": N, "prompts": N, "seed": N}; an answer has the tool's own result keys.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

KEEP = (
    "completed",
    "failed",
    "duration",
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_itl_ms",
)


def arguments(model: str, line: dict[str, Any]) -> argparse.Namespace:
    """The tool's command line for one run."""
    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    fixed = ["--backend", "openai", "--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", model]
    data = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64", "--ignore-eos"]
    load = ["--max-concurrency", "8", "--num-prompts", str(line["prompts"]), "--seed", str(line["seed"])]
    where = ["--host", "127.0.0.1", "--port", str(line["port"]), "--disable-tqdm"]
    found: argparse.Namespace = parser.parse_args([*fixed, *data, *load, *where])
    return found


def main() -> None:
    """Serves lines until stdin ends."""
    for text in sys.stdin:
        line = json.loads(text)
        with contextlib.redirect_stdout(sys.stderr):
            result = serve.main(arguments(sys.argv[1], line))
        print(json.dumps({key: result.get(key) for key in KEEP}), flush=True)


if __name__ == "__main__":
    main()
