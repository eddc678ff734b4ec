"""The CUDA arena (csrc/vmm.c) as Python sees it: physical GPU memory in handles that go back one by one.

Standard library only; the driver is loaded by the library itself.
"""

from __future__ import annotations

import ctypes
from typing import Final

from lull._capped import Capped, CappedStats, int64s

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


class Stats(CappedStats):
    """struct lull_vmm_stats, what it has besides."""

    _fields_ = int64s("pending", "lost", "maps", "handle")
    pending: int
    lost: int
    maps: int
    handle: int


class Vmm(Capped):
    """One a process, on one device. Every method may be called from any thread."""

    def __init__(
        self, path: str, *, device: int, range_bytes: int, handle_bytes: int = HANDLE, driver: int | None = None
    ) -> None:
        """`driver` is the address of a struct vmm_driver, for tests; libcuda.so.1 is loaded without it."""
        self.path: Final = path
        super().__init__(
            path,
            "lull_vmm",
            {
                "open": (ctypes.c_int, (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)),
                "alloc": (ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)),
                "free": (None, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)),
                "free_bytes": (ctypes.c_int64, ()),
                "why": (None, (ctypes.c_char_p, ctypes.c_int64)),
            },
        )
        self.device: Final = device
        if self._lib.lull_vmm_open(device, range_bytes, handle_bytes, driver) != 0:
            raise VmmError(f"lull_vmm_open: {self.why()}")
        self.stats: Final = Stats.in_dll(self._lib, "lull_vmm_stats")

    def alloc(self, size: int, stream: int = 0) -> int:
        """The address of a block for work on a stream (a CUstream), or 0 when it is refused; why() says the reason."""
        return int(self._lib.lull_vmm_alloc(size, self.device, stream) or 0)

    def free(self, address: int, size: int, stream: int = 0) -> None:
        """Gives a block back after the work that is queued on a stream now."""
        self._lib.lull_vmm_free(address, size, self.device, stream)

    def free_bytes(self) -> int:
        """Bytes of free handles: what trims can give back, now or when their last use is over."""
        return int(self._lib.lull_vmm_free_bytes())

    def why(self) -> str:
        """The last reason why something was refused or lost."""
        text = ctypes.create_string_buffer(_WHY_ROOM)
        self._lib.lull_vmm_why(text, _WHY_ROOM)
        return text.value.decode(errors="replace")
