"""PyTorch's CUDA allocator as csrc/vmm.c sees it, on a driver that only keeps books.

It does what was read in PyTorch's source (lull/_torch/cuda_books.py names it): pools cache whole segments, sub-allocate
from them, and give them back only when their object is gone; deleting one while a thread is inside another is an error,
as it would end the process.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "native"))
from vmm_rig import GRAIN, MIB, Driver, arena, compiler

from lull._torch.cuda_arena import CudaArenaPool
from lull._vmm import Vmm

__all__ = ["GRAIN", "MIB", "FakePlace", "FakeTorch", "compiler", "pool_of"]

LARGE, SMALL = 20 * MIB, MIB
STREAM = 1


class FakePlace:
    """A MemPool: what goes when the object does is the books' business."""

    def __init__(self, number: int) -> None:
        self.id = (0, number)


@dataclass
class Segment:
    address: int
    size: int
    pool: tuple[int, int]
    taken: dict[int, int] = field(default_factory=dict)
    """Offset: bytes."""

    def room(self, size: int) -> int | None:
        """The lowest offset with room for size, or None."""
        at = 0
        for offset in sorted(self.taken):
            if offset - at >= size:
                return at
            at = offset + self.taken[offset]
        return at if self.size - at >= size else None


class FakeTorch:
    """Books for CudaArenaPool, and alloc and free as operators would call them on one stream."""

    def __init__(self, vmm: Vmm, driver: Driver) -> None:
        self.vmm, self.driver = vmm, driver
        self.lock = threading.RLock()
        self.segments: list[Segment] = []
        self.outside = 0
        self.inside: tuple[int, int] | None = None
        self.gone: set[tuple[int, int]] = set()
        self.peak = 0
        self.made = 0
        self.errors: list[str] = []

    # ---- what the pool asks ----

    def allocated(self) -> int:
        with self.lock:
            return self.outside + sum(sum(segment.taken.values()) for segment in self.segments)

    def reserved(self) -> int:
        with self.lock:
            return self.outside + sum(segment.size for segment in self.segments)

    def peak_allocated(self) -> int:
        return self.peak

    def peak_reserved(self) -> int:
        return self.reserved()

    def reset_peaks(self) -> None:
        self.peak = self.allocated()

    def place(self) -> FakePlace:
        self.made += 1
        made = FakePlace(self.made)
        weakref.finalize(made, self._deleted, made.id)
        return made

    def live(self, ids: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        with self.lock:
            found: dict[tuple[int, int], int] = {}
            for segment in self.segments:
                if segment.pool in ids:
                    found[segment.pool] = found.get(segment.pool, 0) + sum(segment.taken.values())
            return found

    @contextmanager
    def route(self, place: FakePlace) -> Iterator[None]:
        assert self.inside is None, "already inside a pool"
        self.inside = place.id
        try:
            yield
        finally:
            self.inside = None

    def sweep(self, place: FakePlace) -> None:
        if self.inside is not None:
            self.errors.append("swept while a thread was inside a pool")
        for pool in self.gone:
            self._release(pool)

    def _deleted(self, pool: tuple[int, int]) -> None:
        if self.inside is not None:
            self.errors.append(f"pool {pool} was deleted while a thread was inside {self.inside}")
        self.gone.add(pool)
        self._release(pool)

    def _release(self, pool: tuple[int, int]) -> None:
        with self.lock:
            for segment in [s for s in self.segments if s.pool == pool and not s.taken]:
                self.segments.remove(segment)
                self.vmm.free(segment.address, segment.size, STREAM)

    # ---- what operators do ----

    def alloc(self, size: int) -> int:
        """A tensor's address; torch.OutOfMemoryError as PyTorch raises it."""
        size = max(512, -(-size // 512) * 512)
        with self.lock:
            assert self.inside is not None
            for segment in self.segments:
                if segment.pool == self.inside and (at := segment.room(size)) is not None:
                    break
            else:
                whole = GRAIN if size <= SMALL else LARGE if size < 10 * MIB else -(-size // GRAIN) * GRAIN
                address = self.vmm.alloc(whole, STREAM)
                if not address:
                    raise torch.OutOfMemoryError(f"CUDA out of memory. {self.vmm.why()}")
                segment, at = Segment(address, whole, self.inside), 0
                self.segments.append(segment)
            segment.taken[at] = size
            self.peak = max(self.peak, self.allocated())
            self.driver.launch(STREAM, segment.address + at, size)
            return segment.address + at

    def free(self, address: int) -> None:
        with self.lock:
            for segment in self.segments:
                if segment.address <= address < segment.address + segment.size:
                    del segment.taken[address - segment.address]
                    return
            raise AssertionError("freed what is not there")


def pool_of(*, handle: int = 8 * MIB, range_bytes: int = 1 << 31) -> tuple[CudaArenaPool, FakeTorch]:
    vmm, driver = arena(handle=handle, range_bytes=range_bytes)
    books = FakeTorch(vmm, driver)
    return CudaArenaPool(vmm, books), books
