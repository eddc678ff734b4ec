"""A CUDA device. Thin, and not measured on a GPU yet: what it claims is what PyTorch's documentation says.

The pool is PyTorch's caching allocator. The cap is its per-process fraction, checked when it takes a new
segment; trim is empty_cache, which waits for the streams that used the memory: a trim is not independent
of queued kernels.
"""

from __future__ import annotations

import threading

import torch

from lull._torch.device import Pool, storage_bytes


class CudaPool:
    """PyTorch's caching allocator on one device, minus what was allocated at attach."""

    name = "PyTorch's CUDA allocator"
    capped = False
    unit = 2 << 20

    def __init__(self, index: int) -> None:
        self._index = index
        self._event = threading.Event()
        self.zero = 0

    def resident(self) -> int:
        return max(0, torch.cuda.memory_reserved(self._index) - self.zero)

    def in_use(self) -> int:
        return max(0, torch.cuda.memory_allocated(self._index) - self.zero)

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
        total = torch.cuda.get_device_properties(self._index).total_memory
        fraction = min(1.0, (cap + self.zero) / total)
        torch.cuda.set_per_process_memory_fraction(fraction, self._index)

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


class Cuda:
    """One GPU. bytes() is what the allocator reserved; the sidecar's truth is NVML's figure."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self.index = index
        self.label = f"cuda:{index}"
        self._own = CudaPool(index)
        self.pool: Pool = self._own

    def bytes(self) -> int:
        return int(torch.cuda.memory_reserved(self.index))

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.index)

    def peak_bytes(self) -> int:
        return int(torch.cuda.max_memory_reserved(self.index))

    def own_bytes(self, tensors: list[torch.Tensor]) -> int:
        return storage_bytes(tensors, self.kind)

    def settle(self, floor_end: int) -> None:
        """Where the floor ends, in bytes(): what is above it is the pool's, if the pool cannot tell itself."""
        self._own.zero = int(torch.cuda.memory_reserved(self.index))

    def rng(self) -> tuple[torch.Tensor, ...]:
        return (torch.get_rng_state(), torch.cuda.get_rng_state(self.index))

    def set_rng(self, state: tuple[torch.Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
        torch.cuda.set_rng_state(state[1], self.index)
