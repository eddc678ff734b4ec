"""The bound on host memory: blocks leave vLLM's free queue, then their pages the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._blocks import Blocks
from ._cached import CachedCount
from ._ranges import Run

_ORDER_BYTES = 64 << 20  # one order to the workers: a few milliseconds of madvise


@dataclass(frozen=True)
class Status:
    """Where a bound stands. Counts are blocks, bytes are a rank's."""

    withdrawn: int = 0
    pending: int = 0
    mapped: int = 0
    bound_bytes: int = 0
    floor_bytes: int = 0
    applied: bool = True
    confirmed: bool = True
    clamped: bool = False


class HostBound:
    """Keeps at most the target's bytes of blocks in vLLM's hands, and gives the others' pages back.

    Every method wants the controller's lock; answered takes it itself, on a reader thread.
    """

    def __init__(
        self,
        pool: Any,
        block_bytes: int,
        cached: CachedCount,
        send: Callable[[int, Sequence[Run]], None],
        lock: threading.RLock,
        settled: Callable[[int, bool, float], None],
    ) -> None:
        self.blocks = Blocks(pool)
        self._block_bytes = block_bytes
        self._cached = cached
        self._send = send
        self._lock = lock
        self._settled = settled
        self._orders: dict[int, tuple[tuple[Run, ...], float]] = {}
        self._seq = 0
        self._target = self.blocks.total
        self._floor = 0
        self._goal = self.blocks.total

    def tick(self, target: int | None, need: Callable[[int], int], step: int, done: int) -> None:
        """Moves towards target bytes (None: the pool), on the scheduler's thread.

        need(n) returns the blocks of the largest live request that n blocks can hold; step is the
        newest step scheduled, done the newest whose output came back.
        """
        blocks = self.blocks
        total = blocks.total
        self._target = total if target is None else min(total, target // self._block_bytes)
        if blocks.inside > self._target:
            self._floor = need(blocks.inside)
            self._goal = max(self._target, self._floor)
            self._cached.withdrawing = True
            try:
                blocks.withdraw(blocks.inside - self._goal, step)
            finally:
                self._cached.withdrawing = False
        else:
            self._goal = self._target
        if blocks.inside < self._goal:
            blocks.put_back(self._goal)
        for order in blocks.take_ready(done, max(1, _ORDER_BYTES // self._block_bytes)):
            self._seq += 1
            self._orders[self._seq] = (order, time.perf_counter())
            self._send(self._seq, order)

    @property
    def restless(self) -> bool:
        """Whether a tick would move something although no new order came."""
        blocks = self.blocks
        return blocks.waiting_for_step > 0 or blocks.inside != self._target

    def answered(self, seq: int, freed: bool, size: int) -> None:
        """Every rank answered an order."""
        with self._lock:
            sent = self._orders.pop(seq, None)
            if sent is None:
                return
            order, at = sent
            self.blocks.punched(order, freed)
            self._settled(size if freed else 0, freed, time.perf_counter() - at)

    def holds(self, need: int) -> bool:
        """Whether a request of so many blocks fits in the blocks in vLLM's hands."""
        return self.blocks.out == 0 or need <= self.blocks.inside

    def status(self) -> Status:
        blocks = self.blocks
        held_back = blocks.inside + blocks.pending
        return Status(
            withdrawn=blocks.out,
            pending=blocks.pending,
            mapped=blocks.mapped,
            bound_bytes=self._goal * self._block_bytes,
            floor_bytes=self._floor * self._block_bytes,
            applied=blocks.inside <= self._target,
            confirmed=held_back <= self._target,
            clamped=blocks.inside > self._target and self._floor > self._target,
        )
