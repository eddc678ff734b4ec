"""A sidecar of a few lines: writes the bound page, rings the bell, reads the telemetry page."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from lull_vllm import _page


class FakeSidecar:
    """Speaks to the engine of that name in that directory."""

    def __init__(self, directory: Path, name: str = "vllm", lease_s: float = 10.0) -> None:
        self.directory, self.name = directory, name
        self.lease_s = lease_s
        self.epoch, self.bytes, self.beats, self._seq = 0, 0, 0, 0
        self.bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("sidecar"))
        self.bell.bind(str(self.path("sidecar")))

    def path(self, suffix: str) -> Path:
        return self.directory / f"{self.name}.{suffix}"

    def page(self) -> dict[str, int]:
        """Reads the telemetry page; tries again while a write is under way."""
        for _ in range(1000):
            raw = self.path("page").read_bytes()
            try:
                return _page.decode(_page.TELEMETRY_MAGIC, raw, _page.TELEMETRY_FIELDS)[1]
            except _page.PageError:
                time.sleep(0.0001)
        raise AssertionError("the telemetry page stays torn")

    def beat(self) -> None:
        """A sign of life."""
        self.beats += 1
        self._seq += 2
        words = [0, self.epoch, self.bytes, self.beats, round(self.lease_s * 1e6), os.getpid()]
        with open(self.path("bound"), "r+b", buffering=0) as page:
            page.write(_page.encode(_page.BOUND_MAGIC, self._seq, words))

    def order(self, size: int, epoch: int | None = None, ring: bool = True) -> int:
        """Orders a bound of that many bytes a rank; returns its epoch."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.bytes = size
        self.beat()
        if ring:
            self.ring()
        return self.epoch

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            self.bell.sendto(b"b", str(self.path("bell")))

    def rings(self) -> int:
        """Counts the bells that arrived since the last look."""
        count, patience = 0, self.bell.gettimeout()
        self.bell.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.bell.recv(16):
                count += 1
        self.bell.settimeout(patience)
        return count

    def wait(self, what: Callable[[dict[str, int]], bool], timeout: float = 60.0) -> dict[str, int]:
        """Waits until the page satisfies what."""
        end = time.monotonic() + timeout
        while True:
            page = self.page()
            if what(page):
                return page
            assert time.monotonic() < end, f"not within {timeout} s: {page}"
            time.sleep(0.0002)

    def confirmed(self, epoch: int, timeout: float = 60.0) -> dict[str, int]:
        """Waits until that epoch is confirmed."""
        return self.wait(lambda page: page["confirmed_epoch"] == epoch, timeout)

    def close(self) -> None:
        self.bell.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path("sidecar"))
