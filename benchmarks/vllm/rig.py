"""Real vLLM servers for the benchmark, and requests that are timed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
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

__all__ = [
    "FakeSidecar",
    "Load",
    "Server",
    "Streams",
    "alone",
    "cpu_seconds",
    "engine_pids",
    "make_model",
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
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def ttft(server: Server, prompt: Sequence[int], tokens: int) -> float:
    """Milliseconds from sending a request to its first event; the answer is read to its end."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        began = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        while not answer.readline().startswith(b"data:"):
            pass
        first = (time.perf_counter() - began) * 1e3
        answer.read()
        return first
    finally:
        connection.close()


def warm(server: Server, prompts: Sequence[Sequence[int]], tokens: int, at_once: int = 8) -> list[float]:
    """Sends prompts, some at once; their TTFTs."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda prompt: ttft(server, prompt, tokens), prompts))


class Streams:
    """Keeps some streams running until it ends."""

    def __init__(self, server: Server, count: int) -> None:
        self._server, self._end = server, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]

    def _run(self, i: int) -> None:
        number = 0
        while not self._end.is_set():
            number += 1
            ttft(self._server, [2 + (i * 31 + number * 7 + j) % 250 for j in range(100)], 200)

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


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
