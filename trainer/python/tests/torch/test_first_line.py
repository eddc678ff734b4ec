"""A script under lull.run says who answered and what was granted; the sidecar here is a few lines of this test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lull._protocol import Budget, Hello, Message, Welcome, decode, encode

pytestmark = pytest.mark.integration

PACKAGE = Path(__file__).parents[2]
MIB = 1 << 20

SCRIPT = """
import torch, lull
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
elastic = lull.attach(model, optimizer)
while True:
    elastic.backward(torch.randn(8, 64), lambda x: model(x).square().mean())
    if elastic.agent is None or elastic.orders.epoch:
        break
elastic.close()
"""


def sidecar(server: socket.socket, heard: list[Message]) -> None:
    """One connection: welcomes it, grants 32 MiB and reads to its end."""
    conn, _ = server.accept()
    with conn, conn.makefile("rb") as lines:
        heard.append(decode(lines.readline()))
        conn.sendall(encode(Welcome(1, 7, 60_000, 10_000)) + encode(Budget((7 << 32) + 1, 32 * MIB)))
        for _ in lines:
            pass


def told_of(address: str, script: Path) -> subprocess.CompletedProcess[str]:
    """The script under lull.run, told of a sidecar there."""
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "lull.run", str(script)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "LULL_SOCKET": address, "LULL_DEVICE": "host0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_connection_is_told_on_stderr(tmp_path: Path) -> None:
    path, script, heard = tmp_path / "lull.sock", tmp_path / "train.py", list[Message]()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(120)
        thread = threading.Thread(target=sidecar, args=(server, heard))
        thread.start()
        done = told_of(str(path), script)
        thread.join()
    assert done.returncode == 0, done.stderr
    assert isinstance(heard[0], Hello)
    told = [line for line in done.stderr.splitlines() if line.startswith("lull: connected to")]
    assert len(told) == 1, done.stderr
    assert told[0].startswith(f"lull: connected to {path} (session 7) as host0: budget 32.0 MiB, floor ")
    assert "memory from the native arena" in told[0] or "memory from malloc" in told[0]


def test_a_job_that_is_told_of_no_sidecar_says_once_that_it_trains_alone(tmp_path: Path) -> None:
    done = told_of("", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("lull: ")]
    assert len(told) == 1, done.stderr
    assert told[0].startswith("lull: no sidecar is looked for (LULL_SOCKET or socket= is empty): training alone with ")
