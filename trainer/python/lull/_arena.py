"""The native arena (csrc/arena.c) as Python sees it.

ctypes releases the interpreter lock around each call, so trimming beside a running operator stalls
nobody. The counters are read from the library's memory, without a call. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = ["ENV", "UNATTACHED", "Arena"]

ENV: Final = "LULL_ARENA"
"""Set by lull.run to the path of the library that it preloaded."""

UNATTACHED: Final = "LULL_UNATTACHED"
"""A process's id and a line: the arena prints it when that process ends, unless attach took the variable away."""

_RANGE_LEAST: Final = 1 << 32
_RANGE_MOST: Final = 1 << 40


class Stats(ctypes.Structure):
    """struct lull_arena_stats, field by field; bytes, or counts since start."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "resident",
            "in_use",
            "cap",
            "peak_resident",
            "peak_in_use",
            "blocks",
            "waits",
            "wait_us",
            "overdrafts",
            "failures",
            "trims",
            "trimmed",
            "waiters",
            "short_bytes",
            "base",
            "range",
        )
    ]
    resident: int
    in_use: int
    cap: int
    peak_resident: int
    peak_in_use: int
    blocks: int
    waits: int
    wait_us: int
    overdrafts: int
    failures: int
    trims: int
    trimmed: int
    waiters: int
    short_bytes: int
    base: int
    range: int


def _address_space() -> int:
    """Twice the machine's memory: room for fragments; reserving costs nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(2 * memory, _RANGE_LEAST), _RANGE_MOST)


class Arena:
    """One a process. Every method may be called from any thread."""

    def __init__(
        self, path: str, *, range_bytes: int | None = None, least_block: int = 32768, huge: bool = True
    ) -> None:
        self._lib = ctypes.CDLL(path, use_errno=True)
        for name, result, args in (
            ("init", ctypes.c_int, (ctypes.c_int64, ctypes.c_int64, ctypes.c_int)),
            ("enable", ctypes.c_int, (ctypes.c_int,)),
            ("policy", None, (ctypes.c_int64, ctypes.c_int)),
            ("serve_all", None, (ctypes.c_int,)),
            ("fail", None, (ctypes.c_int,)),
            ("set_cap", None, (ctypes.c_int64,)),
            ("trim", ctypes.c_int64, (ctypes.c_int64,)),
            ("cached", ctypes.c_int64, ()),
            ("wait_short", ctypes.c_int64, (ctypes.c_int64,)),
            ("wake", None, ()),
            ("reset_peak", None, ()),
        ):
            function = getattr(self._lib, f"lull_arena_{name}")
            function.restype, function.argtypes = result, args
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

    def set_cap(self, cap: int) -> None:
        """From now on resident does not rise above cap bytes."""
        self._lib.lull_arena_set_cap(cap)

    def trim(self, target: int) -> int:
        """Gives cached units back until resident <= target bytes; returns bytes given back."""
        return int(self._lib.lull_arena_trim(target))

    def cached(self) -> int:
        """Bytes that a trim could give back now."""
        return int(self._lib.lull_arena_cached())

    def wait_short(self, timeout_us: int) -> int:
        """Blocks until a request misses memory (its bytes), a wake (1) or the timeout (0)."""
        return int(self._lib.lull_arena_wait_short(timeout_us))

    def wake(self) -> None:
        """Ends a wait_short early."""
        self._lib.lull_arena_wake()

    def reset_peak(self) -> None:
        """Starts peak_resident and peak_in_use again from what holds now."""
        self._lib.lull_arena_reset_peak()
