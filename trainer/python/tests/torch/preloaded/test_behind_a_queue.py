"""Whole training on a pool that behaves as a GPU's: freed memory comes back late, and only from the training thread.

The memory is the native arena's. What a GPU adds is put on top: other threads give back nothing that the training
thread has not let go of at a safe point, and that only some milliseconds later; an allocation above the cap fails at
once instead of waiting.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_exact import plain, same_gradients

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXACT
from models import MIB, Recorder, twin

from lull._arena import Arena
from lull._torch import cpu
from lull._torch.cpu import ArenaPool

pytestmark = pytest.mark.cpu

LATE_S = 0.002
"""Seconds from a safe point until the device has done what was queued."""


class Late(ArenaPool):
    """The native arena behind a queue."""

    waits = False

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self.owner = 0
        self.let_go = 0
        self.due = 0.0
        self.waited = 0
        self.lock = threading.Lock()
        self.trim = self.late_trim
        self.enable = self.route
        self.policy = lambda wait_us, overdraft: arena.policy(0, False)

    def route(self, on: bool) -> bool:
        self.owner = threading.get_ident() if on else 0
        return self.arena.enable(on)

    def coming(self) -> int:
        return self.arena.cached()

    def late_trim(self, target: int) -> int:
        with self.lock:
            resident = self.resident()
            if resident <= target:
                return 0
            if self.owner in (0, threading.get_ident()):
                if not self.let_go:
                    self.due = time.monotonic() + LATE_S
                self.let_go = self.arena.cached()
            if time.monotonic() < self.due:
                self.waited += 1
                return 0
            gone = self.arena.trim(max(target, resident - self.let_go))
            self.let_go -= min(self.let_go, gone)
            return gone


@pytest.mark.parametrize("name", ["mlp with dropout and in-place relu", "transformer with dropout"])
def test_storm_changes_no_bit_and_orders_are_met(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "ArenaPool", Late)
    case = EXACT[name]
    torch.manual_seed(7)
    model = case.make()
    other = twin(model)
    ours = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rec = Recorder(model, ours, budget=64 * MIB)
    pool = rec.elastic.device.pool
    assert isinstance(pool, Late)
    rec.elastic.memory.observe(case.size, 24 * MIB)
    stats = rec.elastic.stats
    # Until freed memory has come late too.
    for i in rec.batches(5, lambda: stats.dropped + stats.discards > 0 and pool.waited > 0):
        batch = case.draw(case.size)
        torch.manual_seed(100 + i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 48 * MIB, gap=(0.002, 0.03)):
            rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
        torch.manual_seed(100 + i)
        plain(case, other, batch, rec.parts)
        same_gradients(model, other, f"in batch {i}")
        model.zero_grad()
        other.zero_grad()
    print(name, stats.recomputed, stats.dropped, stats.discards, rec.elastic.orders.hows, pool.waited)
    rec.elastic.close()
    answered = [ack for _, ack in rec.acks if ack.how != "superseded"]
    assert answered
    assert len({ack.epoch for ack in answered}) == len(answered), "each order is answered once"


def test_an_order_in_the_middle_of_a_microbatch_is_met_by_dropping_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "ArenaPool", Late)
    case = EXACT["mlp with dropout and in-place relu"]
    model = case.make()
    rec = Recorder(model, torch.optim.SGD(model.parameters()), budget=64 * MIB)
    batch = case.draw(case.size)
    loss_of = case.loss_of(model)
    rec.elastic.memory.observe(case.size, 24 * MIB)
    rec.elastic.backward(batch, loss_of, **case.call(batch))
    pool = rec.elastic.device.pool
    wanted: list[int] = []

    def loss(part: Any) -> torch.Tensor:
        out = loss_of(part)
        if not wanted:
            wanted.append(max(pool.resident() - 4 * MIB, 4 * MIB))
            rec.order(wanted[0])
        return out

    rec.elastic.backward(batch, loss, **case.call(batch))
    order, ack = rec.acks[0]
    assert order.bytes == wanted[0]
    assert ack.how in ("drop", "suspend", "cached"), ack.how
    assert rec.elastic.stats.discards == 0
