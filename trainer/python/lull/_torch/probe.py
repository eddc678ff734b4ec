"""`python -m lull._torch.probe`: takes memory as a training step does, gives it back and prints what it saw.

One JSON object: torch, kind, device, device_bytes, threads, pool, and in bytes and seconds by the device's own
books what was `taken`, what was `returned`, and how long that took.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

from lull._torch.cpu import Cpu, own_memory
from lull._torch.cuda import Cuda

SIZE = 64 << 20
"""Bytes that are taken."""

_TRIES = 3

_MOST_S = 1.0


def _cpu() -> dict[str, Any]:
    device = Cpu()
    pool = device.pool
    best: dict[str, Any] = {}
    for _ in range(_TRIES):
        pool.enable(True)
        before = own_memory()
        block = torch.empty(SIZE, dtype=torch.uint8)
        block.fill_(1)
        pool.enable(False)
        held = own_memory()
        start = time.perf_counter()
        del block
        pool.trim(0)
        took = time.perf_counter() - start
        seen = {"taken": held - before, "returned": max(0, held - own_memory()), "seconds": took}
        if not best or seen["seconds"] < best["seconds"]:
            best = seen
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"kind": "cpu", "device": "cpu", "device_bytes": memory, "pool": pool.name, **best}


def _cuda() -> dict[str, Any]:
    torch.empty(1, device="cuda")  # the context is not what is measured
    index = torch.cuda.current_device()
    pool = Cuda(index).pool
    free, total = torch.cuda.mem_get_info()
    pool.enable(True)
    block = torch.empty(4 * SIZE, dtype=torch.uint8, device="cuda")
    pool.enable(False)
    torch.cuda.synchronize()
    held = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    del block
    pool.trim(0)
    while pool.resident() and time.perf_counter() - start < _MOST_S:  # what waits for its events
        pool.trim(0)
    took = time.perf_counter() - start
    back = torch.cuda.mem_get_info()[0] - held
    name = f"cuda:{index} {torch.cuda.get_device_name()}"
    seen = {"taken": free - held, "returned": max(0, back), "seconds": took}
    return {"kind": "cuda", "device": name, "device_bytes": total, "pool": pool.name, **seen}


def measure() -> dict[str, Any]:
    """On the first GPU where there is one, else on the CPU."""
    found = _cuda() if torch.cuda.is_available() else _cpu()
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), **found}


if __name__ == "__main__":
    print(json.dumps(measure()))
