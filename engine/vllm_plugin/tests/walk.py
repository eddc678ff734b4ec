"""A random life of an engine over real memory, with a canary in every block.

Steps overlap as under async scheduling: a request may end, and the bound may move, while a step
that writes its blocks is in flight. Every block that a step reads must hold what was written last,
and no order to give pages back may name a block that anybody may still read or write.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from fake_vllm import step_output

from lull_vllm._ranges import Run


@dataclass
class Live:
    number: int
    blocks: list[Any]
    written: set[int] = field(default_factory=set)


@dataclass
class Flight:
    writes: list[tuple[int, Live]]


class Walk:
    """One engine, one seed."""

    def __init__(self, directory: Path, seed: int, pool: Any = None, depth: int = 2) -> None:
        self.random = random.Random(seed)
        self.engine = FakeEngine(directory, blocks=41, block_bytes=8192, layers=2, pool=pool)
        self.engine.held_orders = []
        self.engine.controller.attach(lambda: None)  # this thread is the scheduler's
        self.depth = depth
        self.wrong: list[str] = []
        self.held_back = 40
        self.live: list[Live] = []
        self.flights: deque[Flight] = deque()
        self.content: dict[int, int] = {}  # block → the canary that was written last
        self.count = 0
        self.epoch = 0
        self.confirmed = 0
        self.send = self.engine._send
        self.engine.bound._send = self.check_order

    def check_order(self, seq: int, runs: Sequence[Run]) -> None:
        pool = self.engine.pool
        named = {n for run in runs for n in range(run.first, run.first + run.count)}
        live = {b.block_id for request in self.live for b in request.blocks}
        flying = {n for flight in self.flights for n, _ in flight.writes}
        free, block = set(), pool.free_block_queue.fake_free_list_head.next_free_block
        while block is not None and block.next_free_block is not None:
            free.add(block.block_id)
            block = block.next_free_block
        hashed = {n for n in named if pool.blocks[n].block_hash is not None}
        for what, others in (
            ("null", {0}),
            ("live", live),
            ("flying", flying),
            ("free", free),
            ("cached", hashed),
        ):
            if named & others:  # the controller would swallow an exception here
                self.wrong.append(f"an order names {what} blocks {sorted(named & others)}")
        self.send(seq, runs)

    def act(self) -> None:
        choices = [
            self.admit,
            self.admit,
            self.finish,
            self.schedule,
            self.schedule,
            self.schedule,
            self.complete,
            self.complete,
            self.order,
            self.answer,
            self.answer,
            self.reset,
        ]
        self.random.choice(choices)()

    def admit(self) -> None:
        pool = self.engine.pool
        request = Live(self.count, [])
        self.count += 1
        cached = [b for b in pool.blocks if b.block_hash is not None]
        hits = self.random.sample(cached, min(len(cached), self.random.randint(0, 3)))
        pool.touch(hits)
        for block in hits:
            request.blocks.append(block)
            request.written.add(block.block_id)
        wanted = self.random.randint(1, 6)
        if wanted <= pool.get_num_free_blocks():
            request.blocks.extend(self.engine.allocate(wanted))
        self.live.append(request)

    def finish(self) -> None:
        if self.live:
            request = self.live.pop(self.random.randrange(len(self.live)))
            self.engine.pool.free_blocks(reversed(request.blocks))

    def schedule(self) -> None:
        if len(self.flights) >= self.depth:
            return
        self.engine.controller.before_schedule()
        self.flights.append(Flight([(b.block_id, r) for r in self.live for b in r.blocks]))
        self.engine.controller.after_schedule(step_output(1))
        if self.random.random() < 0.5:
            self.engine.controller.while_it_runs()

    def complete(self) -> None:
        """The worker runs the oldest step: it reads what is there and writes new blocks."""
        if not self.flights:
            return
        flight = self.flights.popleft()
        for number, request in flight.writes:
            if number in request.written and request in self.live:
                self.check(number)
            elif number not in request.written:
                self.write(number, request)
        self.engine.controller.after_update(step_output(1))

    def write(self, number: int, request: Live) -> None:
        canary = request.number * 1000 + number
        for layer in range(2):
            self.slot(layer, number)[:] = canary.to_bytes(8, "little") * 1024
        self.content[number] = canary
        request.written.add(number)
        block = self.engine.pool.blocks[number]
        shared = request not in self.live or block.ref_cnt != 1
        if not shared and block.block_hash is None and self.random.random() < 0.7:
            self.set_hash(block, canary)

    def set_hash(self, block: Any, canary: int) -> None:
        if self.engine.pool.enable_caching:
            self.engine.pool.set_hash(block, canary)

    def check(self, number: int) -> None:
        want = self.content[number].to_bytes(8, "little") * 1024
        for layer in range(2):
            assert bytes(self.slot(layer, number)) == want, f"block {number} lost its content"

    def slot(self, layer: int, number: int) -> memoryview:
        start = 64 + (layer * 41 + number) * 8192
        return memoryview(self.engine.memory)[start : start + 8192]

    def order(self) -> None:
        """The sidecar orders something; some bells are lost."""
        self.epoch += 1
        blocks = self.random.choice([0, 40, self.random.randint(0, 40)])
        self.engine.orders.epoch = self.epoch
        self.engine.orders.bytes = blocks * self.engine.layout.block_bytes
        if self.random.random() < 0.8:
            self.engine.controller.rang()

    def answer(self) -> None:
        """A worker gets round to an order: only now do its pages go."""
        orders = self.engine.held_orders
        assert orders is not None
        if orders:
            self.engine.answer(*orders.pop(0))

    def reset(self) -> None:
        if self.random.random() < 0.2:
            blocks = self.engine.bound.blocks
            lent = blocks.everything_inside()
            self.engine.pool.reset_prefix_cache()
            blocks.withdraw_again(lent)

    def settle(self) -> None:
        """Ends all requests and steps, and answers all orders."""
        while self.flights:
            self.complete()
        while self.live:
            self.finish()
        for _ in range(8):
            self.engine.controller.tick()
            while self.engine.held_orders:
                self.answer()

    def audit(self) -> None:
        """What must hold at every moment."""
        engine = self.engine
        assert not self.wrong and not engine.controller._broken
        blocks, pool = engine.bound.blocks, engine.pool
        queued, count = pool.free_block_queue, 0
        block = queued.fake_free_list_head.next_free_block
        while block is not None and block.next_free_block is not None:
            count += 1
            assert blocks.state[block.block_id] == 0
            block = block.next_free_block
        assert count == pool.get_num_free_blocks()
        used = {b.block_id for r in self.live for b in r.blocks}
        assert count + len(used) + blocks.out == blocks.total
        assert blocks.out == sum(1 for s in blocks.state if s)
        assert blocks.mapped == sum(1 for n in range(1, 41) if not blocks._clean[n])
        held_back = blocks.inside + blocks.pending
        assert blocks.mapped <= held_back
        assert held_back <= max(self.held_back, engine.bound._goal), "memory grew above the goal"
        self.held_back = held_back
        status = engine.bound.status()
        if status.confirmed:
            assert status.mapped * engine.layout.block_bytes <= max(
                status.bound_bytes, engine.bound._target * engine.layout.block_bytes
            )

    def close(self) -> None:
        self.engine.close()
