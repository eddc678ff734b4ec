"""`lull serve` in front of a server, for one run of a client, and what it says of that run."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

LIMIT_MS = 60_000
"""An objective that every sample meets: Lull keeps latencies of what was promised."""


class Lull:
    """A sidecar that relays and measures, with counts of its own."""

    def __init__(self, binary: Path, upstream: str, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        config = work / "lull.yaml"
        config.write_text(
            'listen: "127.0.0.1:0"\nadmin: {listen: "127.0.0.1:0"}\n'
            f'engines: [{{name: main, kind: vllm, url: "{upstream}"}}]\n'
            f"slo: {{ttft: {LIMIT_MS}ms, tbt: {LIMIT_MS}ms}}\n"
        )
        self._log = (work / "lull.log").open("wb")
        self._process = subprocess.Popen(
            [binary, "serve", "--config", config], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.close()
            said = (work / "lull.log").read_text(errors="replace")
            raise RuntimeError(f"lull serve ended before it listened; it said:\n{said}")
        ready = json.loads(line)
        self.url, self._admin = f"http://{ready['listening']}", f"http://{ready['admin']}"

    def seen(self) -> dict[str, dict[str, float]]:
        """By kind (ttft, tbt) the samples' number and P50, P99 and maximum in ms."""
        with urllib.request.urlopen(f"{self._admin}/api/v1/state", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
        found = {}
        for objective in state["slo"][0]["objectives"]:
            latency = objective.get("latency")
            if latency:
                found[objective["objective"]] = {
                    "n": latency["n"], "p50": latency["p50_s"] * 1e3,
                    "p99": latency["p99_s"] * 1e3, "max": latency["max_s"] * 1e3,
                }  # fmt: skip
        return found

    def close(self) -> None:
        """Ends it by the id that it was started with."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()
