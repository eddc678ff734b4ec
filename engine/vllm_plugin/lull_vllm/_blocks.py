"""Which KV blocks are in vLLM's hands, and which were taken out to keep the bound.

A withdrawn block is an ordinary allocation: it comes out of vLLM's own BlockPool.get_new_blocks,
which takes the least recently used free block first and evicts its cached prefix with all that
belongs to it, and it goes back through BlockPool.free_blocks. vLLM's invariants hold at each
moment, and no block that a request references can be taken.

States of a block: IN vLLM's hands → OUT (withdrawn; a step in flight may still touch it) →
PUNCHING (the workers are giving its pages back) → GONE (they did) → IN. A block that was not
allocated since its pages went is clean and goes from IN to GONE at once.

Only the scheduler's thread takes blocks and puts them back. Confirmations come from another
thread; every method expects the caller to hold the controller's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ._ranges import Run, runs_of
from ._wire import split

IN, OUT, PUNCHING, GONE = range(4)


class Pool(Protocol):
    """What is used of vLLM's BlockPool."""

    num_gpu_blocks: int
    blocks: Sequence[Any]
    enable_caching: bool

    def get_new_blocks(self, num_blocks: int) -> list[Any]: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...

    def get_num_free_blocks(self) -> int: ...


class Blocks:
    """The state of every block of one pool; the null block is no part of the count."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._take = pool.get_new_blocks
        self._free = pool.free_blocks
        n = pool.num_gpu_blocks
        self.total = n - 1
        self.state = bytearray(n)
        self._clean = bytearray(n)
        self.mapped = self.total  # vLLM zeroes its whole pool at start
        self._fence: dict[int, int] = {}  # OUT blocks, and the step they wait for
        self._gone: set[int] = set()
        self._kept: set[int] = set()  # GONE, but giving their pages back went wrong
        self._punching = 0
        self._pins: dict[int, int] = {}

    @property
    def out(self) -> int:
        """Blocks withdrawn, in whatever state."""
        return len(self._fence) + self._punching + len(self._gone)

    @property
    def inside(self) -> int:
        """Blocks in vLLM's hands."""
        return self.total - self.out

    @property
    def pending(self) -> int:
        """Blocks withdrawn whose pages have not gone."""
        return len(self._fence) + self._punching + len(self._kept)

    @property
    def waiting_for_step(self) -> int:
        """Blocks withdrawn that a step in flight may still touch."""
        return len(self._fence)

    def withdraw(self, count: int, fence: int) -> int:
        """Takes up to count free blocks; fence is the newest step that may still touch them."""
        count = min(count, self._pool.get_num_free_blocks())
        if count <= 0:
            return 0
        for block in self._take(count):
            number = block.block_id
            if self._clean[number]:
                self.state[number] = GONE
                self._gone.add(number)
            else:
                self.state[number] = OUT
                self._fence[number] = fence
        return count

    def put_back(self, goal: int) -> int:
        """Puts blocks back until goal are inside, as far as memory allows.

        Blocks whose pages are on their way count until they are gone: what is inside and what is
        still mapped outside never grow above the goal together.
        """
        count = max(0, goal - self.inside)
        chosen = list(self._fence)[:count]
        for number in chosen:
            del self._fence[number]
        back = self._unpinned(self._kept)[: count - len(chosen)]  # mapped all the time
        self._kept.difference_update(back)
        self._gone.difference_update(back)
        room = goal - self.inside - self.pending  # those just chosen are inside already
        cold = self._unpinned(self._gone - self._kept)
        cold = cold[: max(0, min(count - len(chosen) - len(back), room))]
        self._gone.difference_update(cold)
        chosen += back + cold
        for number in chosen:
            self.state[number] = IN
        self._free([self._pool.blocks[number] for number in chosen])
        return len(chosen)

    def take_ready(self, done_step: int, max_blocks: int) -> list[tuple[Run, ...]]:
        """Moves the blocks whose fence has passed to PUNCHING and returns them as orders."""
        ready = [number for number, fence in self._fence.items() if fence <= done_step]
        if not ready:
            return []
        for number in ready:
            del self._fence[number]
            self.state[number] = PUNCHING
        self._punching += len(ready)
        settled = bytes(1 if s in (PUNCHING, GONE) else 0 for s in self.state)
        orders = split(runs_of(ready, settled), max_blocks)
        for order in orders:
            for neighbour in _neighbours(order):
                self._pins[neighbour] = self._pins.get(neighbour, 0) + 1
        return orders

    def punched(self, order: Sequence[Run], freed: bool) -> None:
        """Every rank has answered this order; freed says that the pages are gone on all."""
        for neighbour in _neighbours(order):
            left = self._pins.pop(neighbour) - 1
            if left:
                self._pins[neighbour] = left
        for run in order:
            for number in range(run.first, run.first + run.count):
                self.state[number] = GONE
                self._gone.add(number)
                self._punching -= 1
                if freed:
                    self._forget_pages(number)
                else:
                    self._kept.add(number)

    def allocated(self, blocks: Iterable[Any]) -> None:
        """vLLM took these blocks for requests: they may be written from now on."""
        clean = self._clean
        for block in blocks:
            number = block.block_id
            if clean[number]:
                clean[number] = 0
                self.mapped += 1

    def everything_inside(self) -> list[Any]:
        """Lends all withdrawn blocks back for one call that wants the pool whole."""
        lent = [self._pool.blocks[number] for number in self._numbers_out()]
        self._free(lent)
        return lent

    def withdraw_again(self, lent: Sequence[Any]) -> None:
        """Takes back exactly what everything_inside lent; nothing was allocated in between."""
        taken = self._take(len(lent)) if lent else []
        if [b.block_id for b in taken] != [b.block_id for b in lent]:
            raise RuntimeError(f"withdrew {len(taken)} blocks again, but not the {len(lent)} lent")

    def _unpinned(self, numbers: Iterable[int]) -> list[int]:
        return sorted(number for number in numbers if number not in self._pins)

    def _numbers_out(self) -> list[int]:
        return [number for number, state in enumerate(self.state) if state != IN]

    def _forget_pages(self, number: int) -> None:
        if not self._clean[number]:
            self._clean[number] = 1
            self.mapped -= 1


def _neighbours(runs: Iterable[Run]) -> Iterable[int]:
    for run in runs:
        if run.left:
            yield run.first - 1
        if run.right:
            yield run.first + run.count
