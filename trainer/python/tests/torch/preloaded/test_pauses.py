"""A pause that a pace asks for is no work: nothing that is learned of the job's speed counts it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lull
from lull._protocol import Ack, Budget, Pace
from lull._torch.costs import Plan
from lull._torch.pace import Pacer

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, attach, text_loss

pytestmark = pytest.mark.cpu


class Clock:
    """Stands still but in the pauses that it is told of."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def let_pauses_pass(self, pacer: Pacer) -> None:
        def wait(timeout: float | None = None) -> bool:
            self.now += timeout or 0.0
            return False

        pacer._changed.wait = wait  # type: ignore[method-assign]


def test_working_time_stands_still_in_a_pause() -> None:
    clock = Clock()
    pacer = Pacer(clock, lambda: False)
    clock.let_pauses_pass(pacer)
    began = pacer.working()
    seen: list[float] = []
    pause = pacer._changed.wait

    def wait(timeout: float | None = None) -> bool:
        pause(timeout)
        seen.append(pacer.working() - began)
        return False

    pacer._changed.wait = wait  # type: ignore[method-assign]
    pacer.set(Pace(0.5, "test"))
    for block in range(1, 5):
        clock.now += 1.0
        pacer.gate()
        assert pacer.working() - began == pytest.approx(block)
        assert clock.now == pytest.approx(100.0 + 2 * block), "half of the time"
        assert seen == [pytest.approx(block)] * len(seen) != [], "nor does it go on while the pause lasts"
        seen.clear()


def trained(clock: Clock) -> tuple[Gpt, lull.Elastic, torch.Tensor]:
    """A job after its first batch, from now on by that clock, and the batch."""
    torch.manual_seed(2)
    model = Gpt()
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=256 * MIB)
    ids = torch.randint(0, 256, (8, 65))
    elastic.backward(ids, text_loss(model))
    elastic._pacer._clock = elastic.orders.clock = clock
    return model, elastic, ids


def test_speed_and_costs_are_those_of_the_work_alone() -> None:
    clock = Clock()
    model, elastic, ids = trained(clock)
    elastic._pacer._worked_since = clock.now
    clock.let_pauses_pass(elastic._pacer)
    gate, gates = elastic._pacer.gate, list[int]()

    def block() -> None:
        gates.append(1)
        clock.now += 0.01
        gate()

    elastic._pacer.gate = block  # type: ignore[method-assign]
    elapsed: list[float] = []

    def choose(over: int, within_s: float, samples: int, elapsed_s: float) -> Plan:
        elapsed.append(elapsed_s)
        return Plan("drop", 0.0, "")

    elastic.orders.costs.choose = choose  # type: ignore[method-assign]
    elastic.stats.rates.clear()
    elastic.pace(Pace(0.1, "test"))
    before = clock.now
    elastic.backward(ids, text_loss(model))
    worked = 0.01 * len(gates)
    assert clock.now - before == pytest.approx(10 * worked), "the pace was kept"
    assert elastic.stats.microbatch_s[-1] == pytest.approx(worked)
    assert [speed for _, speed in elastic.stats.rate_curve()] == [pytest.approx(8 / worked, rel=1e-3)]
    elastic.orders.costs.sample_s.count = 0
    gates.clear()

    def ordered() -> None:
        block()
        if len(gates) == 3:
            acks: list[Ack] = []
            elastic.apply(Budget(1, elastic.device.pool.in_use() - 1, 5_000), acks.append)

    elastic._pacer.gate = ordered  # type: ignore[method-assign]
    elastic.backward(ids, text_loss(model))
    assert elapsed == [pytest.approx(0.03)], "how long a microbatch has run, when an order comes"


def test_interrupt_in_a_pause_does_not_stop_the_clock() -> None:
    clock = Clock()
    pacer = Pacer(clock, lambda: False)

    def interrupt(timeout: float | None = None) -> bool:
        clock.now += 0.1
        raise KeyboardInterrupt

    pacer._changed.wait = interrupt  # type: ignore[method-assign]
    pacer.set(Pace(0.5))
    clock.now += 1.0
    with pytest.raises(KeyboardInterrupt):
        pacer.gate()
    before = pacer.working()
    clock.now += 30.0
    assert pacer.working() - before == pytest.approx(30.0)


def test_learned_time_of_a_sample_is_without_pauses() -> None:
    clock = Clock()
    model, elastic, ids = trained(clock)
    clock.let_pauses_pass(elastic._pacer)
    elastic.orders.costs.sample_s.count = 0
    elastic.pace(Pace(0.0, "test", lease_ms=60_000))
    before = clock.now
    elastic.backward(ids, text_loss(model))
    assert clock.now - before == pytest.approx(60.0, abs=0.5)
    assert elastic.orders.costs.sample_s.mean == pytest.approx(0.0, abs=1e-9)
