"""Starts a real vLLM server with or without the plugin, and ends what it started."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
READY_S = 240.0


def make_site(directory: Path) -> Path:
    """Makes the package importable with its entry point, as an installation would."""
    info = directory / "lull_vllm-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lull-vllm\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nlull = lull_vllm:register\n")
    with contextlib.suppress(FileExistsError):
        (directory / "lull_vllm").symlink_to(ROOT / "lull_vllm")
    return directory


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One vLLM server on a free port of the loopback."""

    def __init__(
        self, work: Path, model: Path, *arguments: str, env: dict[str, str] | None = None
    ) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.directory = work / "pages"
        self.port = free_port()
        self.log = work / "server.log"
        environ = {
            **os.environ,
            "PYTHONPATH": str(make_site(work / "site")),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "LULL_VLLM_DIR": str(self.directory),
            **(env or {}),
        }
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port),
            "--max-model-len", "1024", "--enforce-eager", "--max-num-seqs", "16",
            "--max-num-batched-tokens", "256", "--dtype", "float32",
            "--kv-cache-memory-bytes", str(128 << 20), *arguments,
        ]  # fmt: skip
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_ready(self) -> None:
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"the server is not ready:\n{self.log_text()[-4000:]}")

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Any = None) -> tuple[int, str]:
        return self._exchange("POST", path, json.dumps(body if body is not None else {}))

    def _exchange(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def complete(self, prompt: list[int], tokens: int) -> list[int]:
        """Returns the greedy answer to a prompt of token ids, as token ids, in its whole length."""
        ids = self.answer(prompt, tokens)
        assert len(ids) == tokens
        return ids

    def answer(self, prompt: list[int], tokens: int, **more: object) -> list[int]:
        """The same, for as long as it gets; more goes into the request."""
        status, text = self.post(
            "/v1/completions",
            {
                "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True, **more,
            },
        )  # fmt: skip
        assert status == 200, text
        return [int(i) for i in json.loads(text)["choices"][0]["token_ids"]]

    def metric(self, name: str) -> float:
        """Returns the sum of a metric's samples."""
        lines = [x for x in self.get("/metrics")[1].splitlines() if x.startswith(name + "{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def stop(self) -> None:
        """Ends the server, and its process group if it does not go."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


def process_bytes(pid: int) -> int:
    """Returns RssAnon + RssShmem of a process."""
    with open(f"/proc/{pid}/status", encoding="ascii") as lines:
        return sum(int(x.split()[1]) * 1024 for x in lines if x.startswith(("RssAnon", "RssShmem")))
