"""Which request may start under a bound that does not hold its whole answer."""

from __future__ import annotations

import logging

import pytest
from fake_vllm import BlockPool, Request, Scheduler

from lull_vllm._admission import PATIENCE_S, Admission
from lull_vllm._requests import Requests

pytestmark = pytest.mark.cpu


class Bound:
    inside = 32

    def holds(self, need: int) -> bool:
        return need <= self.inside


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.scheduler = Scheduler(BlockPool(33))
        self.bound = Bound()
        requests = Requests(self.scheduler, 16)
        self.admission = Admission(requests, self.bound, lambda: self.now)


@pytest.fixture
def world() -> World:
    return World()


def test_request_that_the_bound_cannot_hold_waits_until_it_can(world: World) -> None:
    request = Request("a", 100, 28)  # 128 tokens: 8 blocks
    assert not world.admission.must_wait(request)
    world.bound.inside = 7
    assert world.admission.must_wait(request)
    world.bound.inside = 8
    assert not world.admission.must_wait(request)


def test_request_starts_by_vllms_own_rule_when_no_room_is_made_in_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.bound.inside = 7
    first, second = Request("a", 100, 28), Request("b", 100, 500)
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        assert world.admission.must_wait(first)
        world.now += 0.9 * PATIENCE_S
        assert world.admission.must_wait(first)
        world.now += 0.2 * PATIENCE_S
        assert not world.admission.must_wait(first)
        assert world.admission.must_wait(second)  # with a patience of its own
        world.now += PATIENCE_S
        assert not world.admission.must_wait(second)
    assert [record.getMessage() for record in caplog.records] == [
        "lull: request a needs 8 blocks for its prompt and max_tokens, more than the bound for "
        "1 s; vLLM admits such requests when their prompts fit, and may preempt them (said once)"
    ]


def test_preempted_request_waits_anew(world: World) -> None:
    world.bound.inside = 7
    request = Request("a", 100, 28)
    assert world.admission.must_wait(request)
    world.now += PATIENCE_S
    assert not world.admission.must_wait(request)
    assert not world.admission.must_wait(request)  # its prompt found no blocks: it stays due
    world.admission.started()
    assert world.admission.must_wait(request)


def test_lacking_is_what_lets_the_longest_waiting_request_in(world: World) -> None:
    world.bound.inside = 10
    world.scheduler.waiting += [Request("a", 15, 1), Request("b", 31, 300)]  # 1 + 2 blocks now
    needs = -(-331 // 16)
    assert world.admission.lacking(free=10, inside=10) == needs - 10
    assert world.admission.lacking(free=4, inside=10) == needs - 10
    world.bound.inside = 32
    assert world.admission.lacking(free=10, inside=32) == 0
    assert world.admission.lacking(free=1, inside=32) == 2


def test_engine_without_a_bound_makes_nobody_wait(world: World) -> None:
    admission = Admission(Requests(world.scheduler, 16), None, lambda: world.now)
    world.scheduler.waiting.append(Request("a", 31, 4000))
    assert not admission.must_wait(Request("a", 31, 4000))
    assert admission.lacking(free=1, inside=32) == 1
