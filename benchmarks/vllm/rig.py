"""Real vLLM servers for the benchmark, and requests that are timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "engine" / "vllm_plugin"
sys.path[:0] = [str(PLUGIN), str(PLUGIN / "tests"), str(PLUGIN / "tests" / "integration")]

from fake_sidecar import FakeSidecar  # noqa: E402
from model import make_model  # noqa: E402
from server import Server, process_bytes  # noqa: E402
from streams import first_event  # noqa: E402

__all__ = [
    "FakeSidecar",
    "Load",
    "Server",
    "Streams",
    "alone",
    "cpu_seconds",
    "engine_pids",
    "make_model",
    "page_faults",
    "process_bytes",
    "serving",
    "ttft",
    "warm",
]

MIB = 1 << 20


class Load:
    """The child of load.py."""

    def __init__(self, model: Path, log: Path) -> None:
        self._log = log.open("wb")
        command = [sys.executable, str(HERE / "load.py"), str(model)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def run(self, server: Server, prompts: int, seed: int) -> dict[str, Any]:
        """One run of `vllm bench serve`."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps({"port": server.port, "prompts": prompts, "seed": seed}) + "\n")
        self._child.stdin.flush()
        text = self._child.stdout.readline()
        if not text:
            raise RuntimeError(f"vllm bench serve ended; its log is {self._log.name}")
        result: dict[str, Any] = json.loads(text)
        if result["completed"] != prompts:
            raise RuntimeError(f"vllm bench serve: {result['completed']} of {prompts} requests completed")
        return result

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60)
        self._log.close()


def engine_pids(server: Server) -> list[int]:
    """The processes below the HTTP server: EngineCore and its workers."""
    found, look = [], [server.process.pid]
    while look:
        pid = look.pop()
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            below = [int(word) for word in file.read_text().split()]
            found += below
            look += below
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of the processes so far."""
    return sum(int(stat[11]) + int(stat[12]) for stat in map(process_stat, pids)) / 100


def page_faults(pids: Sequence[int]) -> int:
    """Minor faults of the processes so far: first touches of pages, mostly."""
    return sum(int(stat[7]) for stat in map(process_stat, pids))


def process_stat(pid: int) -> list[str]:
    """/proc/PID/stat from its third field, the state, on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def ttft(server: Server, prompt: Sequence[int], tokens: int) -> float:
    """Milliseconds from sending a request to its first event; the answer is read to its end."""
    return first_event(server.port, prompt, tokens)


def warm(server: Server, prompts: Sequence[Sequence[int]], tokens: int, at_once: int = 8) -> list[float]:
    """Sends prompts, some at once; their TTFTs."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: ttft(server, prompt, tokens), prompts))


class Streams:
    """Keeps some streams running until it ends, in a process of its own: their threads would keep the interpreter from
    the one who looks at the page, for a hundred milliseconds at a time."""

    def __init__(self, server: Server, count: int) -> None:
        self._command = [sys.executable, str(HERE / "streams.py"), str(server.port), str(count)]
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Streams:
        self._child = subprocess.Popen(self._command, stdin=subprocess.PIPE)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child is not None
        self._child.communicate()  # the end of its standard input
        if self._child.returncode:
            raise RuntimeError(f"{self._command}: exit status {self._child.returncode}")


@contextmanager
def serving(*servers: Server) -> Iterator[None]:
    """Waits until all serve, and ends them."""
    try:
        for server in servers:
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()


@contextmanager
def alone(*others: Server) -> Iterator[None]:
    """Stops the others' processes meanwhile: an idle vLLM spins, and would take a core from the one measured."""
    for server in others:
        os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in others:
            os.killpg(server.process.pid, signal.SIGCONT)
