"""All that Lull uses of PyTorch's CUDA allocator, in one place: documented functions of torch.cuda and no others.

What is not in their documentation and was read in PyTorch's source (2.13), and what Lull relies on:
- A pool gives cached memory back only when its MemPool object is gone and no thread allocates from it. Deleting
  the object waits for uses by other streams (record_stream) of that pool's blocks, for nothing else.
- empty_cache inside use_mem_pool gives back what such pools have cached since, and touches and waits for nothing else.
- A MemPool must not be deleted while any thread is inside use_mem_pool or captures a graph.
- Memory that a thread other than the one inside use_mem_pool takes is not the pool's. Backward runs in a thread of
  the engine, unless set_multithreading_enabled(False).
- A MemPool's allocator is called with PyTorch's lock held; NULL is torch.OutOfMemoryError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from lull._vmm import ALLOC, FREE


class Place(Protocol):
    """A torch.cuda.MemPool."""

    @property
    def id(self) -> tuple[int, int]: ...


class Books(Protocol):
    """One device's allocator. Every method is safe on any thread, but for what is said above. Bytes."""

    def allocated(self) -> int:
        """In live tensors, wherever."""

    def reserved(self) -> int:
        """In segments, wherever."""

    def peak_allocated(self) -> int:
        """The highest allocated() since reset_peaks."""

    def peak_reserved(self) -> int:
        """The highest reserved() since reset_peaks."""

    def reset_peaks(self) -> None: ...

    def place(self) -> Place:
        """A new pool on Lull's arena."""

    def live(self, ids: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Bytes in live tensors of each of these pools; one without segments is left out."""

    def route(self, place: Place) -> AbstractContextManager[None]:
        """This thread, and the backward pass that it runs, allocate from a pool."""

    def sweep(self, place: Place) -> None:
        """Gives back whole free segments of pools whose object is gone. Not inside route."""


_snapshot: Any = torch.cuda.memory_snapshot
_use_pool: Any = getattr(torch.cuda, "use_mem_pool", None)


class TorchBooks:
    """PyTorch's own."""

    def __init__(self, index: int, library: str) -> None:
        """`library` is csrc/vmm.c, open on this device."""
        self._index = index
        self._allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(library, ALLOC, FREE)

    def _stat(self, name: str, which: str) -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(self._index)[name]["all"][which])

    def allocated(self) -> int:
        return self._stat("allocated_bytes", "current")

    def reserved(self) -> int:
        return self._stat("reserved_bytes", "current")

    def peak_allocated(self) -> int:
        return self._stat("allocated_bytes", "peak")

    def peak_reserved(self) -> int:
        return self._stat("reserved_bytes", "peak")

    def reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._index)

    def place(self) -> Place:
        with torch.cuda.device(self._index):
            place: Place = torch.cuda.MemPool(self._allocator.allocator())
        return place

    def live(self, ids: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for pool in ids:
            segments = _snapshot(pool, include_traces=False)
            if segments:
                found[pool] = sum(int(segment["allocated_size"]) for segment in segments)
        return found

    @contextmanager
    def route(self, place: Place) -> Iterator[None]:
        with torch.autograd.grad_mode.set_multithreading_enabled(False), _use_pool(place, self._index):
            yield

    def sweep(self, place: Place) -> None:
        with torch.cuda.device(self._index), _use_pool(place, self._index):
            torch.cuda.empty_cache()
