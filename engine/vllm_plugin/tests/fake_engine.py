"""A whole engine without vLLM: the package's own controller, bound and pages over a fake pool.

Its KV memory is real: an anonymous mapping whose pages the real puncher gives back.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fake_vllm import BlockPool, EngineLoop, Scheduler

from lull_vllm import _page
from lull_vllm._admission import Admission
from lull_vllm._advice import Advice
from lull_vllm._cached import CachedCount
from lull_vllm._controller import Controller
from lull_vllm._doorbell import Doorbell
from lull_vllm._host import HostBound
from lull_vllm._orders import Orders
from lull_vllm._puncher import Pages
from lull_vllm._ranges import Layout, Run, TensorLayout, layout_of
from lull_vllm._requests import Requests
from lull_vllm._telemetry import Telemetry

BLOCK_TOKENS = 16


class FakeEngine:
    """layers tensors of blocks x block_bytes each, in one mapping; one rank."""

    def __init__(
        self,
        directory: Path,
        blocks: int = 33,
        block_bytes: int = 16384,
        layers: int = 2,
        name: str = "vllm",
        pool: Any = None,
        mode: int = _page.MODE_HOST_PAGES,
        room: Callable[[int], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = 10.0,
        offset: int = 64,
    ) -> None:
        self.base = str(directory / name)
        self.layout = self._make_memory(layers, blocks, block_bytes, offset)
        self.advice = Advice()
        self.pages = Pages(self.layout, self.advice)
        self.pages.prepare()
        self.pool = pool if pool is not None else BlockPool(blocks)
        self.scheduler = Scheduler(self.pool)
        self.cached = CachedCount(self.pool)
        self.lock = threading.RLock()
        self.held_orders: list[tuple[int, Sequence[Run]]] | None = None
        self.sent: list[tuple[int, Sequence[Run]]] = []
        self.fail_with = ""
        self.lock_file = open(f"{self.base}.lock", "wb")  # noqa: SIM115
        fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.instance = int.from_bytes(os.urandom(6), "little") | 1
        self.orders = Orders(self._make_reader(), self.instance, lease_s, room, clock)
        self.bound = HostBound(
            self.pool,
            self.layout.block_bytes,
            self.cached,
            self._send,
            self.lock,
            lambda *answer: self.controller.settled(*answer),
        )
        requests = Requests(self.scheduler, BLOCK_TOKENS)
        bound = self.bound if mode == _page.MODE_HOST_PAGES else None
        page = Path(f"{self.base}.page")
        writer = _page.PageWriter(page, _page.TELEMETRY_MAGIC, _page.TELEMETRY_FIELDS)
        self.controller = Controller(
            self.scheduler,
            Telemetry(writer, self._constants(mode, blocks)),
            self.orders,
            Doorbell(Path(f"{self.base}.bell"), Path(f"{self.base}.sidecar")),
            self.cached,
            requests,
            Admission(requests, bound, clock),
            bound,
            self.lock,
            clock=clock,
        )
        self.loop = EngineLoop()
        self.controller.attach(lambda: self.loop.inbox.put(self.controller.tick))
        self.take = self.pool.get_new_blocks

    def _make_memory(self, layers: int, blocks: int, block_bytes: int, offset: int) -> Layout:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.memory = mmap.mmap(-1, layers * blocks * block_bytes + 8192, flags=private)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + offset
        starts = [address + layer * blocks * block_bytes for layer in range(layers)]
        tensors = [TensorLayout(start, blocks, block_bytes, block_bytes) for start in starts]
        return layout_of(tensors, blocks, mmap.PAGESIZE)

    def _make_reader(self) -> _page.PageReader:
        bound = Path(f"{self.base}.bound")
        _page.create(bound, _page.encode(_page.BOUND_MAGIC, 0, [0] * len(_page.BOUND_FIELDS)))
        return _page.PageReader(bound, _page.BOUND_MAGIC, _page.BOUND_FIELDS)

    def _constants(self, mode: int, blocks: int) -> dict[str, int]:
        return {
            "instance": self.instance,
            "engine_pid": os.getpid(),
            "mode": mode,
            "ranks": 1,
            "block_tokens": BLOCK_TOKENS,
            "block_bytes": self.layout.block_bytes,
            "pool_blocks": blocks - 1,
            "max_model_len": 2048,
            "baseline_bytes": 1 << 20,
            "worker_pid_0": os.getpid(),
        }

    def start(self) -> None:
        self.loop.call(self.controller.start)

    def _send(self, seq: int, runs: Sequence[Run]) -> None:
        self.sent.append((seq, runs))
        if self.held_orders is not None:
            self.held_orders.append((seq, runs))
            return
        self.answer(seq, runs)

    def answer(self, seq: int, runs: Sequence[Run]) -> None:
        freed = 0 if self.fail_with else self.pages.give_back(runs)
        self.bound.answered(seq, not self.fail_with, freed)

    def allocate(self, count: int, hashes: Sequence[Any] | None = None) -> list[Any]:
        """What a request does: takes blocks, and fills them for the prefix cache."""
        blocks = self.take(count)
        self.bound.blocks.allocated(blocks)
        for block, value in zip(blocks, hashes or (), strict=False):
            self.pool.set_hash(block, value)
        return blocks

    def close(self) -> None:
        self.loop.call(self.controller.close)
        self.loop.stop()
        self.advice.close()
        self.lock_file.close()
