"""The CPU as a device: the native arena if lull.run preloaded it, else malloc alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

import torch

from lull._arena import Arena
from lull._torch.device import Pool, storage_bytes

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 262144


def own_memory() -> int:
    """RssAnon + RssShmem of this process, in bytes."""
    return sum(int(line.split()[1]) << 10 for line in _status_lines(b"RssAnon:", b"RssShmem:"))


def _status_lines(*names: bytes) -> list[bytes]:
    return [line for line in _STATUS.read_bytes().split(b"\n") if line.startswith(names)]


class ArenaPool:
    """The native arena."""

    name = "the native arena"
    capped = True
    waits = True
    unit = 2 << 20

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._stats = arena.stats
        self.enable = arena.enable
        self.set_cap = arena.set_cap
        self.policy = arena.policy
        self.fail = arena.fail
        self.trim = arena.trim
        self.wait_short = arena.wait_short
        self.wake = arena.wake
        self.reset_peak = arena.reset_peak

    def resident(self) -> int:
        return self._stats.resident

    def in_use(self) -> int:
        return self._stats.in_use

    def above(self, limit: int) -> bool:
        return self._stats.in_use > limit

    def coming(self) -> int:
        return 0

    def peak(self) -> int:
        return self._stats.peak_in_use

    def peak_resident(self) -> int:
        return self._stats.peak_resident

    def waiters(self) -> int:
        return self._stats.waiters

    def counters(self) -> dict[str, int]:
        names = ("waits", "wait_us", "overdrafts", "failures", "trims", "trimmed", "peak_resident", "blocks")
        return {name: getattr(self._stats, name) for name in names}


class MallocPool:
    """Plain malloc: large blocks are mapped alone and go back when they are freed; no cap of its own.

    resident is what the process holds beyond `floor_of()`; in_use is the same, read again only every
    millisecond, since the kernel's books cost 20 us.
    """

    name = "malloc"
    capped = False
    waits = False
    unit = 4096

    def __init__(self) -> None:
        self.zero = own_memory()
        self._read_at = 0.0
        self._seen = 0
        self._peak = 0
        self._event = threading.Event()
        libc = ctypes.CDLL(None)
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            libc.mallopt(option, _LARGE)
        self._malloc_trim = libc.malloc_trim

    def resident(self) -> int:
        self._read_at, self._seen = time.monotonic(), max(0, own_memory() - self.zero)
        self._peak = max(self._peak, self._seen)
        return self._seen

    def in_use(self) -> int:
        return self._seen if time.monotonic() - self._read_at < 1e-3 else self.resident()

    def above(self, limit: int) -> bool:
        return self.in_use() > limit

    def coming(self) -> int:
        return 0

    def peak(self) -> int:
        return self._peak

    def peak_resident(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self.resident()

    def waiters(self) -> int:
        return 0

    def enable(self, on: bool) -> bool:
        return False

    def set_cap(self, cap: int) -> None:
        pass

    def policy(self, wait_us: int, overdraft: bool) -> None:
        pass

    def fail(self, on: bool) -> None:
        pass

    def trim(self, target: int) -> int:
        before = self.resident()
        if before <= target:
            return 0
        self._malloc_trim(0)
        return max(0, before - self.resident())

    def wait_short(self, timeout_us: int) -> int:
        woken = self._event.wait(timeout_us / 1e6)
        self._event.clear()
        return int(woken)

    def wake(self) -> None:
        self._event.set()

    def counters(self) -> dict[str, int]:
        return {}

    def release_rate(self, size: int = 64 << 20) -> float:
        """Measures how fast plain malloc gives memory back, in bytes per second."""
        block = torch.empty(size, dtype=torch.uint8)
        block.fill_(1)
        start = time.perf_counter()
        del block
        return size / max(time.perf_counter() - start, 1e-9)


class Cpu:
    """Host memory; the truth is RssAnon + RssShmem."""

    kind = "cpu"
    label = "cpu"

    def __init__(self) -> None:
        arena = Arena.preloaded()
        self.pool: Pool = ArenaPool(arena) if arena is not None else MallocPool()
        self._peak_base = 0
        self._file = 0

    def bytes(self) -> int:
        return own_memory()

    def total(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def start_peak(self) -> None:
        """Resets the kernel's high-water mark of this process (clear_refs 5 touches nothing else)."""
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_bytes(b"5")
        self._peak_base = own_memory()
        self._file = self._high_water() - self._peak_base

    def peak_bytes(self) -> int:
        return max(self._high_water() - self._file, own_memory())

    @staticmethod
    def _high_water() -> int:
        return sum(int(line.split()[1]) << 10 for line in _status_lines(b"VmHWM:"))

    def own_bytes(self, tensors: list[torch.Tensor]) -> int:
        return storage_bytes(tensors, self.kind)

    def settle(self, floor_end: int) -> None:
        if isinstance(self.pool, MallocPool):
            self.pool.zero = floor_end

    def give_back_cache(self) -> None:
        """malloc keeps no large blocks."""

    def boundary(self) -> None:
        """Operators run as they are called."""

    def capturing(self) -> bool:
        return False

    def rng(self) -> tuple[torch.Tensor, ...]:
        return (torch.get_rng_state(),)

    def set_rng(self, state: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
