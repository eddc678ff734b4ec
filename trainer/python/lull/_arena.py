"""The native arena (csrc/arena.c) as Python sees it. Standard library only."""

from __future__ import annotations

import ctypes
import os
from typing import Final

from lull._capped import Capped, CappedStats, int64s

__all__ = ["ENV", "UNATTACHED", "Arena"]

ENV: Final = "LULL_ARENA"
"""Set by lull.run to the path of the library that it preloaded."""

UNATTACHED: Final = "LULL_UNATTACHED"
"""A process's id and a line: the arena prints it when that process ends, unless attach took the variable away."""

_RANGE_LEAST: Final = 1 << 32
_RANGE_MOST: Final = 1 << 40


class Stats(CappedStats):
    """struct lull_arena_stats, what it has besides."""

    _fields_ = int64s("waits", "wait_us", "overdrafts", "waiters")
    waits: int
    wait_us: int
    overdrafts: int
    waiters: int


def _address_space() -> int:
    """Twice the machine's memory: room for fragments; reserving costs nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(2 * memory, _RANGE_LEAST), _RANGE_MOST)


class Arena(Capped):
    """One a process. Every method may be called from any thread."""

    def __init__(
        self, path: str, *, range_bytes: int | None = None, least_block: int = 32768, huge: bool = True
    ) -> None:
        super().__init__(
            path,
            "lull_arena",
            {
                "init": (ctypes.c_int, (ctypes.c_int64, ctypes.c_int64, ctypes.c_int)),
                "enable": (ctypes.c_int, (ctypes.c_int,)),
                "policy": (None, (ctypes.c_int64, ctypes.c_int)),
                "serve_all": (None, (ctypes.c_int,)),
                "fail": (None, (ctypes.c_int,)),
                "cached": (ctypes.c_int64, ()),
            },
        )
        if self._lib.lull_arena_init(range_bytes or _address_space(), least_block, int(huge)) != 0:
            raise OSError(ctypes.get_errno(), "lull_arena_init: no address space")
        self.stats: Final = Stats.in_dll(self._lib, "lull_arena_stats")

    @classmethod
    def preloaded(cls) -> Arena | None:
        """The arena that lull.run preloaded into this process, or None."""
        path = os.environ.get(ENV, "")
        if not path or path not in os.environ.get("LD_PRELOAD", "").split(":"):
            return None
        return cls(path, least_block=int(os.environ.get("LULL_ARENA_LEAST") or 32768))

    def enable(self, on: bool) -> bool:
        """Sends large requests of all threads to the arena, or to libc; returns what held before."""
        return bool(self._lib.lull_arena_enable(int(on)))

    def policy(self, wait_us: int, overdraft: bool) -> None:
        """What a request above the cap does when nothing is cached: wait, then overdraft or fail."""
        self._lib.lull_arena_policy(wait_us, int(overdraft))

    def serve_all(self, on: bool) -> None:
        """Serves every caller of the process, not PyTorch's allocator alone: for tests."""
        self._lib.lull_arena_serve_all(int(on))

    def fail(self, on: bool) -> None:
        """While on, requests above the cap fail at once, waiting ones included."""
        self._lib.lull_arena_fail(int(on))

    def cached(self) -> int:
        """Bytes that a trim could give back now."""
        return int(self._lib.lull_arena_cached())
