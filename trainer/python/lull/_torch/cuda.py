"""A CUDA device. Written to PyTorch's documentation and tested on a CPU with stand-ins: not run on a GPU yet.

Activations lie in Lull's own arena (cuda_arena.py) where the driver offers virtual memory management, else in PyTorch's
caching allocator: there the cap is its per-process fraction, checked when it takes a new segment, and trim is
empty_cache, which waits for all that is queued.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from lull._build import VMM, library
from lull._torch.cuda_arena import CudaArenaPool
from lull._torch.cuda_books import TorchBooks
from lull._torch.cuda_settings import CudaSettings
from lull._torch.device import Pool, storage_bytes
from lull._torch.run_ahead import RunAhead
from lull._vmm import Vmm

_log = logging.getLogger("lull")

_PREFIX = "on CUDA activations lie in PyTorch's caching allocator, and an order waits for all that is queued: "


class CudaPool:
    """PyTorch's caching allocator on one device, above a base: what it held at attach, and later the floor."""

    name = "PyTorch's CUDA allocator"
    capped = False
    waits = False
    unit = 2 << 20

    def __init__(self, index: int) -> None:
        self._index = index
        self._event = threading.Event()
        self.zero = int(torch.cuda.memory_reserved(index))
        self._settled = False
        self._cap = 1 << 62
        self._setting = threading.Lock()
        self._theirs: float | None = None
        """The fraction that was in force before Lull's, while Lull's is."""

    def resident(self) -> int:
        return max(0, torch.cuda.memory_reserved(self._index) - self.zero)

    def in_use(self) -> int:
        return max(0, torch.cuda.memory_allocated(self._index) - self.zero)

    def above(self, limit: int) -> bool:
        return self.in_use() > limit

    def coming(self) -> int:
        return 0

    def peak(self) -> int:
        return max(0, torch.cuda.max_memory_allocated(self._index) - self.zero)

    def peak_resident(self) -> int:
        return max(0, torch.cuda.max_memory_reserved(self._index) - self.zero)

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._index)

    def waiters(self) -> int:
        return 0

    def enable(self, on: bool) -> bool:
        return False

    def set_cap(self, cap: int) -> None:
        """None while the floor is unknown: it would fail what is no activation. A cap above all memory puts back what
        the user had set."""
        with self._setting:
            self._cap = cap
            self._fence()

    def settle(self, floor_end: int) -> None:
        """The floor is known, or higher than it was: what is reserved up to there is none of the pool's."""
        with self._setting:
            self.zero, self._settled = floor_end, True
            self._fence()

    def _fence(self) -> None:
        part = (self._cap + self.zero) / torch.cuda.get_device_properties(self._index).total_memory
        if self._settled and part < 1.0:
            if self._theirs is None:
                self._theirs = _fraction(self._index)
            torch.cuda.set_per_process_memory_fraction(min(self._theirs, part), self._index)
        elif self._theirs is not None:
            torch.cuda.set_per_process_memory_fraction(self._theirs, self._index)
            self._theirs = None

    def policy(self, wait_us: int, overdraft: bool) -> None:
        pass

    def fail(self, on: bool) -> None:
        pass

    def trim(self, target: int) -> int:
        before = self.resident()
        if before <= target:
            return 0
        with torch.cuda.device(self._index):
            torch.cuda.empty_cache()
        return max(0, before - self.resident())

    def wait_short(self, timeout_us: int) -> int:
        woken = self._event.wait(timeout_us / 1e6)
        self._event.clear()
        return int(woken)

    def wake(self) -> None:
        self._event.set()

    def counters(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats(self._index)
        return {"ooms": int(stats.get("num_ooms", 0)), "retries": int(stats.get("num_alloc_retries", 0))}


_Event: Any = torch.cuda.Event
_fraction: Any = getattr(torch.cuda, "get_per_process_memory_fraction", lambda index: 1.0)  # not in an older PyTorch

_opened: dict[int, CudaArenaPool | str] = {}
"""By device: the library serves one, once a process, and a second attach finds the first one's pool, or why there is
none."""


def _open(index: int, handle: int, env: Mapping[str, str]) -> CudaArenaPool:
    path = library(VMM, env)
    if path is None:
        raise OSError("no C compiler (gcc) to make Lull's arena")
    total = int(torch.cuda.get_device_properties(index).total_memory)
    vmm = Vmm(path, device=index, range_bytes=2 * total, handle_bytes=handle)
    return CudaArenaPool(vmm, TorchBooks(index, path))


def choose(
    index: int,
    settings: CudaSettings,
    env: Mapping[str, str],
    make: Callable[[int, int, Mapping[str, str]], CudaArenaPool] = _open,
) -> CudaArenaPool | CudaPool:
    """The arena, or the caching allocator with a line that says why."""
    if settings.pool == "caching":
        return CudaPool(index)
    if index not in _opened:
        try:
            _opened[index] = make(index, settings.handle, env)
        except (OSError, RuntimeError, AttributeError, TypeError) as error:  # driver, compiler, another PyTorch
            _opened[index] = str(error)
    found = _opened[index]
    if isinstance(found, str):
        _log.warning("%s%s", _PREFIX, found)
        return CudaPool(index)
    return found


class Cuda:
    """One GPU. bytes() is what PyTorch and the arena hold; the sidecar's truth is NVML's figure, which has the
    process's context (some hundred MiB) besides."""

    kind = "cuda"

    def __init__(self, index: int, env: Mapping[str, str] = os.environ) -> None:
        settings = CudaSettings.from_env(env)
        self.index = index
        self.label = f"cuda:{index}"
        self._own = choose(index, settings, env)
        self.pool: Pool = self._own
        self._ahead = RunAhead(settings.run_ahead, partial(_Event, blocking=True))

    def _cached(self) -> int:
        """Bytes that only the arena knows: mapped, and in no segment of PyTorch's."""
        own = self._own
        return own.resident() - own.vmm.stats.in_use if isinstance(own, CudaArenaPool) else 0

    def bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self.index)) + self._cached()

    def total(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).total_memory)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.index)

    def peak_bytes(self) -> int:
        return max(int(torch.cuda.max_memory_reserved(self.index)), self.bytes())

    def own_bytes(self, tensors: list[torch.Tensor]) -> int:
        return storage_bytes(tensors, self.kind)

    def settle(self, floor_end: int) -> None:
        if isinstance(self._own, CudaPool):
            self._own.settle(floor_end)

    def give_back_cache(self) -> None:
        """What PyTorch has cached outside the arena goes back; waits for what is queued."""
        with torch.cuda.device(self.index):
            torch.cuda.empty_cache()

    def boundary(self) -> None:
        self._ahead.boundary()

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def rng(self) -> tuple[torch.Tensor, ...]:
        return (torch.get_rng_state(), torch.cuda.get_rng_state(self.index))

    def set_rng(self, state: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
        torch.cuda.set_rng_state(state[1], self.index)
