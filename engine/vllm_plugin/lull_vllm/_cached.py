"""Counts the free blocks that hold a cached prefix, without walking the free queue each step.

It follows vLLM's BlockPool through wrappers on the one pool object: evictions, hits on free
blocks, and frees. A walk of the queue puts it right again, rarely, in case a path was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class Cached(Protocol):
    """What telemetry wants of a count."""

    @property
    def free(self) -> int: ...

    @property
    def evicted(self) -> int: ...

    def walk(self) -> None: ...


class CachedCount:
    """free is the number of free blocks with a hash, evicted what a bound made vLLM forget."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.free = 0
        self.evicted = 0
        self.drift = 0
        self.withdrawing = False
        self._evict: Callable[[Any], bool] = pool._maybe_evict_cached_block
        self._touch = pool.touch
        self._free_blocks = pool.free_blocks
        self._reset: Callable[[], bool] = pool.reset_prefix_cache
        pool.reset_prefix_cache = self._on_reset
        pool._maybe_evict_cached_block = self._on_evict
        pool.touch = self._on_touch
        pool.free_blocks = self._on_free

    def walk(self) -> None:
        """Counts the queue from its head to its tail."""
        count = 0
        block = self._pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not None and block.next_free_block is not None:
            if block.block_hash is not None:
                count += 1
            block = block.next_free_block
        self.drift += abs(count - self.free)
        self.free = count

    def _on_evict(self, block: Any) -> bool:
        evicted = self._evict(block)
        if evicted and block.ref_cnt == 0 and not block.is_null:
            self.free -= 1
            if self.withdrawing:
                self.evicted += 1
        return evicted

    def _on_reset(self) -> bool:
        done = self._reset()
        if done:
            self.free = 0
        return done

    def _on_touch(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            if block.ref_cnt == 0 and block.block_hash is not None and not block.is_null:
                self.free -= 1
        self._touch(blocks)

    def _on_free(self, ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        self._free_blocks(blocks)
        for block in blocks:
            if block.ref_cnt == 0 and block.block_hash is not None and not block.is_null:
                self.free += 1
