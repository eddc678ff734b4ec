"""What the two arenas' libraries have in common (csrc/capped.h): memory under a cap, counters, a thread that is told.

ctypes releases the interpreter lock around each call, so giving back beside a running operator stalls nobody. The
counters are read from the library's memory, without a call. Standard library only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Capped", "CappedStats", "Function", "int64s"]

Function = tuple[Any, Sequence[Any]]
"""A C function's result and arguments, as ctypes has them."""

_COMMON: Mapping[str, Function] = {
    "set_cap": (None, (ctypes.c_int64,)),
    "trim": (ctypes.c_int64, (ctypes.c_int64,)),
    "wait_short": (ctypes.c_int64, (ctypes.c_int64,)),
    "wake": (None, ()),
    "reset_peak": (None, ()),
}


def int64s(*names: str) -> list[tuple[str, Any]]:
    """Fields of a ctypes.Structure."""
    return [(name, ctypes.c_int64) for name in names]


class CappedStats(ctypes.Structure):
    """COMMON_STATS of csrc/capped.h, field by field, with which each library's begin; bytes, or counts since start."""

    _fields_ = int64s(
        *("resident", "in_use", "cap", "peak_resident", "peak_in_use", "blocks"),
        *("failures", "trims", "trimmed", "short_bytes", "base", "range"),
    )
    resident: int
    in_use: int
    cap: int
    peak_resident: int
    peak_in_use: int
    blocks: int
    failures: int
    trims: int
    trimmed: int
    short_bytes: int
    base: int
    range: int


class Capped:
    """A loaded library whose functions begin with `prefix`. Every method may be called from any thread."""

    def __init__(self, path: str, prefix: str, functions: Mapping[str, Function]) -> None:
        """`functions` are those that this library has besides, by their names without the prefix."""
        self._lib = ctypes.CDLL(path, use_errno=True)
        self._prefix = prefix
        for name, (result, args) in {**_COMMON, **functions}.items():
            function = self._of(name)
            function.restype, function.argtypes = result, args

    def _of(self, name: str) -> Any:
        return getattr(self._lib, f"{self._prefix}_{name}")

    def set_cap(self, cap: int) -> None:
        """From now on resident does not rise above cap bytes."""
        self._of("set_cap")(cap)

    def trim(self, target: int) -> int:
        """Gives free memory back until resident <= target bytes; returns bytes given back."""
        return int(self._of("trim")(target))

    def wait_short(self, timeout_us: int) -> int:
        """Blocks until a request misses memory (its bytes), a wake (1) or the timeout (0)."""
        return int(self._of("wait_short")(timeout_us))

    def wake(self) -> None:
        """Ends a wait_short early."""
        self._of("wake")()

    def reset_peak(self) -> None:
        """Starts peak_resident and peak_in_use again from what holds now."""
        self._of("reset_peak")()
