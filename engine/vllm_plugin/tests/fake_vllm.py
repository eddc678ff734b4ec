"""The little of vLLM that the package holds on to, in plain Python: for tests without vLLM.

The free queue keeps vLLM's order: blocks without a hash are reused first, those with one last and
least recently used first. test_blocks.py runs the same walks against vLLM's own BlockPool.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class Block:
    """vLLM's KVCacheBlock."""

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: Any = None
        self.is_null = False
        self.prev_free_block: Block | None = None
        self.next_free_block: Block | None = None


class Queue:
    """vLLM's FreeKVCacheBlockQueue: a doubly linked list between a false head and tail."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.fake_free_list_head = Block(-1)
        self.fake_free_list_tail = Block(-1)
        self.fake_free_list_head.next_free_block = self.fake_free_list_tail
        self.fake_free_list_tail.prev_free_block = self.fake_free_list_head
        self.num_free_blocks = 0
        self.insert(self.fake_free_list_tail, blocks)

    def insert(self, before: Block, blocks: Iterable[Block]) -> None:
        for block in blocks:
            last = before.prev_free_block
            assert last is not None and block.next_free_block is None
            last.next_free_block, block.prev_free_block = block, last
            block.next_free_block, before.prev_free_block = before, block
            self.num_free_blocks += 1

    def remove(self, block: Block) -> None:
        before, after = block.prev_free_block, block.next_free_block
        assert before is not None and after is not None
        before.next_free_block, after.prev_free_block = after, before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1


class BlockPool:
    """vLLM's BlockPool."""

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [Block(i) for i in range(num_gpu_blocks)]
        self.free_block_queue = Queue(self.blocks)
        self.null_block = self.blocks[0]
        self.null_block.is_null = True
        self.free_block_queue.remove(self.null_block)
        self.cached: dict[Any, Block] = {}

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_new_blocks(self, num_blocks: int) -> list[Block]:
        if num_blocks > self.get_num_free_blocks():
            raise ValueError(f"Cannot get {num_blocks} free blocks from the pool")
        taken = []
        for _ in range(num_blocks):
            block = self.free_block_queue.fake_free_list_head.next_free_block
            assert block is not None
            self.free_block_queue.remove(block)
            if self.enable_caching:
                self._maybe_evict_cached_block(block)
            assert block.ref_cnt == 0
            block.ref_cnt = 1
            taken.append(block)
        return taken

    def _maybe_evict_cached_block(self, block: Block) -> bool:
        if block.block_hash is None:
            return False
        del self.cached[block.block_hash]
        block.block_hash = None
        return True

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        first, last = [], []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            if block.ref_cnt == 0 and not block.is_null:
                (last if block.block_hash is not None else first).append(block)
        head = self.free_block_queue.fake_free_list_head.next_free_block
        assert head is not None
        self.free_block_queue.insert(head, first)
        self.free_block_queue.insert(self.free_block_queue.fake_free_list_tail, last)

    def get_usage(self) -> float:
        return 1.0 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)

    def reset_prefix_cache(self) -> bool:
        if self.num_gpu_blocks - self.get_num_free_blocks() != 1:
            return False
        self.cached.clear()
        for block in self.blocks:
            block.block_hash = None
        return True

    def set_hash(self, block: Block, value: Any) -> None:
        assert block.block_hash is None and value not in self.cached
        block.block_hash = value
        self.cached[value] = block


@dataclass
class Request:
    """vLLM's Request."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    blocks: list[Any] = field(default_factory=list)
    status: str = "WAITING"

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens


class Scheduler:
    """vLLM's Scheduler: only what is read of it."""

    def __init__(self, pool: Any, max_model_len: int = 2048) -> None:
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.deferred_waiting: set[str] = set()
        self.num_lookahead_tokens = 0
        self.max_model_len = max_model_len

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)


def step_output(tokens: int = 1, preempted: Iterable[str] = ()) -> Any:
    """vLLM's SchedulerOutput."""
    return SimpleNamespace(total_num_scheduled_tokens=tokens, preempted_req_ids=set(preempted))


class EngineLoop:
    """An EngineCore's idle loop: a thread that blocks on its input queue and runs what comes."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()

    def call(self, work: Callable[[], Any]) -> Any:
        """Runs work on the engine's thread and returns its result."""
        done: queue.Queue[Any] = queue.Queue()
        self.inbox.put(lambda: done.put(work()))
        return done.get(timeout=60)

    def stop(self) -> None:
        self.inbox.put(None)
        self._thread.join()
