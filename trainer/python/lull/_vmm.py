"""The CUDA arena (csrc/vmm.c) as Python sees it: physical GPU memory in handles that go back one by one.

ctypes releases the interpreter lock around each call. The counters are read from the library's memory, without
a call. Standard library only; the driver is loaded by the library itself.
"""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["ALLOC", "FREE", "GRAIN", "HANDLE", "Vmm", "VmmError"]

ALLOC: Final = "lull_vmm_alloc"
FREE: Final = "lull_vmm_free"
"""The functions of the library that torch.cuda.memory.CUDAPluggableAllocator takes."""

GRAIN: Final = 2 << 20
"""Bytes in which blocks are counted: the segments of PyTorch's allocator are multiples of it."""

HANDLE: Final = 32 << 20
"""Bytes of a handle unless told. Smaller ones are pinned less by what lives on in them and take longer to unmap."""

_WHY_ROOM = 512


class VmmError(OSError):
    """The arena cannot be had; the text says why."""


class Stats(ctypes.Structure):
    """struct lull_vmm_stats, field by field; bytes, or counts since start."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "resident",
            "in_use",
            "cap",
            "peak_resident",
            "peak_in_use",
            "blocks",
            "failures",
            "trims",
            "trimmed",
            "pending",
            "lost",
            "maps",
            "short_bytes",
            "base",
            "range",
            "handle",
        )
    ]
    resident: int
    in_use: int
    cap: int
    peak_resident: int
    peak_in_use: int
    blocks: int
    failures: int
    trims: int
    trimmed: int
    pending: int
    lost: int
    maps: int
    short_bytes: int
    base: int
    range: int
    handle: int


class Vmm:
    """One a process, on one device. Every method may be called from any thread."""

    def __init__(
        self, path: str, *, device: int, range_bytes: int, handle_bytes: int = HANDLE, driver: int | None = None
    ) -> None:
        """`driver` is the address of a struct vmm_driver, for tests; libcuda.so.1 is loaded without it."""
        self.path: Final = path
        lib = self._lib = ctypes.CDLL(path)
        for name, result, args in (
            ("open", ctypes.c_int, (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)),
            ("alloc", ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)),
            ("free", None, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)),
            ("set_cap", None, (ctypes.c_int64,)),
            ("trim", ctypes.c_int64, (ctypes.c_int64,)),
            ("free_bytes", ctypes.c_int64, ()),
            ("wait_short", ctypes.c_int64, (ctypes.c_int64,)),
            ("wake", None, ()),
            ("reset_peak", None, ()),
            ("why", None, (ctypes.c_char_p, ctypes.c_int64)),
        ):
            function = getattr(lib, f"lull_vmm_{name}")
            function.restype, function.argtypes = result, args
        self.device: Final = device
        if lib.lull_vmm_open(device, range_bytes, handle_bytes, driver) != 0:
            raise VmmError(f"lull_vmm_open: {self.why()}")
        self.stats: Final = Stats.in_dll(lib, "lull_vmm_stats")

    def alloc(self, size: int, stream: int = 0) -> int:
        """The address of a block for work on a stream (a CUstream), or 0 when it is refused; why() says the reason."""
        return int(self._lib.lull_vmm_alloc(size, self.device, stream) or 0)

    def free(self, address: int, size: int, stream: int = 0) -> None:
        """Gives a block back after the work that is queued on a stream now."""
        self._lib.lull_vmm_free(address, size, self.device, stream)

    def set_cap(self, cap: int) -> None:
        """From now on resident does not rise above cap bytes."""
        self._lib.lull_vmm_set_cap(cap)

    def trim(self, target: int) -> int:
        """Gives free handles whose last use is over back until resident <= target; returns bytes given back."""
        return int(self._lib.lull_vmm_trim(target))

    def free_bytes(self) -> int:
        """Bytes of free handles: what trims can give back, now or when their last use is over."""
        return int(self._lib.lull_vmm_free_bytes())

    def wait_short(self, timeout_us: int) -> int:
        """Blocks until a request was refused (the bytes missing), a wake (1) or the timeout (0)."""
        return int(self._lib.lull_vmm_wait_short(timeout_us))

    def wake(self) -> None:
        """Ends a wait_short early."""
        self._lib.lull_vmm_wake()

    def reset_peak(self) -> None:
        """Starts peak_resident and peak_in_use again from what holds now."""
        self._lib.lull_vmm_reset_peak()

    def why(self) -> str:
        """The last reason why something was refused or lost."""
        text = ctypes.create_string_buffer(_WHY_ROOM)
        self._lib.lull_vmm_why(text, _WHY_ROOM)
        return text.value.decode(errors="replace")
