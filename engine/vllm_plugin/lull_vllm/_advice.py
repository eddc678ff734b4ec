"""madvise for the pages of withdrawn blocks: many ranges in one system call where the kernel can.

A block's pages lie in as many ranges as there are layers. Each call lets go of the interpreter
lock and wants it back, and a worker spins on its queue for a second after its last step; one call
for all ranges waits once. process_madvise takes any advice for the caller's own memory since
Linux 6.13.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Sequence

DONTNEED = 4
NOHUGEPAGE = 15
_PROCESS_MADVISE = 440  # the number on every architecture of Linux since 5.10
_IOV_MAX = 1024

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.restype = ctypes.c_int
_libc.syscall.restype = ctypes.c_long

Range = tuple[int, int]  # address, bytes


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Advice:
    """Advises the kernel about this process's memory. Used on one thread."""

    def __init__(self, many: bool = True) -> None:
        self._self = -1
        if many and hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # a kernel without it: range by range
                self._self = os.pidfd_open(os.getpid())

    def give(self, address: int, length: int, advice: int) -> None:
        """Advises one range. Raises OSError; a kernel without huge pages is none."""
        if _libc.madvise(address, length, advice) != 0:
            number = ctypes.get_errno()
            if number == errno.EINVAL and advice == NOHUGEPAGE:
                return
            what = f"madvise({address:#x}, {length}, {advice})"
            raise OSError(number, f"{what}: {os.strerror(number)}")

    def drop(self, ranges: Sequence[Range]) -> int:
        """Gives the ranges' pages back and returns their bytes."""
        at = 0
        while self._self >= 0 and at < len(ranges):
            part = ranges[at : at + _IOV_MAX]
            if not self._drop_at_once(part):
                break
            at += len(part)
        for address, length in ranges[at:]:
            self.give(address, length, DONTNEED)
        return sum(length for _, length in ranges)

    def _drop_at_once(self, part: Sequence[Range]) -> bool:
        """Whether one call did it. What it leaves half done is done again: that costs nothing."""
        vector = (_Vector * len(part))(*(_Vector(*each) for each in part))
        done = _libc.syscall(
            ctypes.c_long(_PROCESS_MADVISE),
            ctypes.c_long(self._self),
            vector,
            ctypes.c_size_t(len(part)),
            ctypes.c_long(DONTNEED),
            ctypes.c_long(0),
        )
        if done == sum(length for _, length in part):
            return True
        if done < 0:  # an older kernel, or a sandbox: from now on range by range
            os.close(self._self)
            self._self = -1
        return False

    @property
    def at_once(self) -> bool:
        """Whether many ranges still go in one call."""
        return self._self >= 0

    def close(self) -> None:
        """Ends the use of the one call; give and drop go on."""
        if self._self >= 0:
            os.close(self._self)
            self._self = -1
