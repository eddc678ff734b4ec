"""The controller's side of handover_bench.py: the job as a process, its control connection and its memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "trainer" / "python"))

from lull._protocol import Ack, Budget, Message, Ping, Refused, Request, Welcome, decode, encode  # noqa: E402

PAGE = os.sysconf("SC_PAGE_SIZE")


class Job:
    """The training process, its control connection and the kernel's view of its memory."""

    def __init__(self, python: str, script: Sequence[str], budget: int, folder: str, core: int | None) -> None:
        """Starts a script with its arguments under lull.run, and welcomes it."""
        path = f"{folder}/lull.sock"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(1)
        server.settimeout(0.2)
        env = {
            **os.environ,
            "LULL_SOCKET": path,
            "LULL_BUDGET": str(budget),
            "PYTHONPATH": str(ROOT / "trainer" / "python"),
        }
        pin = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen(
            [*pin, python, "-m", "lull.run", *script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.conn = self._await(server)
        self._rest = b""
        self._inbox: list[Message] = []
        self.epoch = 1 << 32
        self.floor = 0
        """The floor in force, as the job's stats last said it."""
        self.refused = 0
        """Requests for a higher floor, each refused."""
        self.conn.settimeout(30)
        self._receive()
        self.conn.sendall(encode(Welcome(version=1, session=1, heartbeat_ms=1000, lease_ms=3_600_000)))
        self.conn.setblocking(False)
        self._pinged = time.monotonic()
        self._statm = os.open(f"/proc/{self.process.pid}/statm", os.O_RDONLY)
        self._schedstat = os.open(f"/proc/{self.process.pid}/schedstat", os.O_RDONLY)

    def _await(self, server: socket.socket) -> socket.socket:
        """The job's connection; fails when the job has ended or takes two minutes."""
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(TimeoutError):
                conn, _ = server.accept()
                server.close()
                return conn
        raise SystemExit(f"handover_bench: the job has not connected (exit status {self.process.poll()}), want it to")

    def rss(self) -> int:
        """RssAnon of the job: resident minus file and shared pages (it maps no shared memory)."""
        fields = os.pread(self._statm, 128, 0).split()
        return (int(fields[1]) - int(fields[2])) * PAGE

    def ran_s(self) -> float:
        """Seconds that the job's first thread, which trains, has had a core; 0 where the kernel does not count them."""
        return int((os.pread(self._schedstat, 128, 0).split() or [b"0"])[0]) / 1e9

    def _receive(self) -> None:
        data = self.conn.recv(1 << 16)
        if not data:
            raise SystemExit("handover_bench: the job closed its connection")
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._inbox += [decode(line) for line in lines]

    def acks(self) -> list[Ack]:
        """The acks that have come; keeps the heartbeat and refuses a higher floor at once.

        A floor that moves would move the bytes that an order is judged by; left without an answer the job
        would wait for one between its batches, inside an order that is being timed.
        """
        with contextlib.suppress(BlockingIOError):
            self._receive()
        if time.monotonic() - self._pinged > 1:
            self._pinged = time.monotonic()
            self.conn.send(encode(Ping(1)))
        inbox, self._inbox = self._inbox, []
        for _ in (m for m in inbox if isinstance(m, Request)):
            self.refused += 1
            self.conn.send(encode(Refused(self.floor, "the benchmark keeps the floor")))
        return [m for m in inbox if isinstance(m, Ack)]

    def order(self, bytes: int, within_us: int = 0) -> int:
        """Sends a budget and returns its epoch."""
        self.epoch += 1
        self.conn.send(encode(Budget(self.epoch, bytes, within_us)))
        return self.epoch

    def rest(self, seconds: float) -> None:
        """Lets the job run, keeping the heartbeat."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.acks()
            time.sleep(min(left, 0.01))

    def tell(self, line: str) -> dict[str, Any]:
        """Sends a command and returns the job's stats."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        while not select.select([self.process.stdout], [], [], 0.01)[0]:
            self.acks()  # the job may be waiting for an answer to its request
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.floor = answer["floor"]
        return answer

    def close(self) -> None:
        """Ends the job by closing its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
