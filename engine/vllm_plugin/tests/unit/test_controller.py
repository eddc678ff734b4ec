"""The controller over a fake pool with real memory: orders, lease, bells and what breaks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_sidecar import FakeSidecar
from fake_vllm import Request, step_output

from lull_vllm import _page
from lull_vllm._kvcached import KVCachedBound

pytestmark = pytest.mark.cpu


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(tmp_path: Path, clock: Clock) -> Iterator[FakeEngine]:
    made = FakeEngine(tmp_path, clock=clock)
    yield made
    made.close()


@pytest.fixture
def sidecar(engine: FakeEngine, tmp_path: Path) -> Iterator[FakeSidecar]:
    made = FakeSidecar(tmp_path)
    yield made
    made.close()


def tick(engine: FakeEngine) -> None:
    engine.loop.call(engine.controller.tick)


def test_idle_engine_obeys_a_bell(engine: FakeEngine, sidecar: FakeSidecar) -> None:
    engine.start()
    page = sidecar.confirmed(sidecar.order(10 * 32768))
    assert page["blocks_withdrawn"] == 22 and page["blocks_mapped"] == 10
    assert page["bound_bytes"] == 10 * 32768


def test_idle_engine_obeys_although_the_bell_was_lost(
    engine: FakeEngine, sidecar: FakeSidecar, clock: Clock
) -> None:
    engine.start()
    epoch = sidecar.order(10 * 32768, ring=False)

    def look(page: dict[str, int]) -> bool:
        clock.now += 0.05  # the next beat comes
        return page["confirmed_epoch"] == epoch

    sidecar.wait(look)


def test_epoch_is_confirmed_only_when_every_rank_gave_its_pages_back(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.held_orders = []
    epoch = sidecar.order(10 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["applied_epoch"] == epoch and page["confirmed_epoch"] == 0
    assert page["blocks_pending"] == 22 and page["blocks_mapped"] == 32
    assert page["bound_bytes"] == 10 * 32768
    for seq, runs in engine.held_orders:
        engine.answer(seq, runs)
    page = sidecar.page()
    assert page["confirmed_epoch"] == epoch and page["blocks_pending"] == 0
    assert sidecar.bell.recv(16) == b"c"


def test_blocks_of_a_step_in_flight_wait_for_its_output(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.controller.before_schedule()
    engine.controller.after_schedule(step_output(5))
    epoch = sidecar.order(0)
    engine.controller.rang()
    engine.controller.before_schedule()
    engine.controller.after_schedule(step_output(0))
    assert engine.sent == [] and sidecar.page()["applied_epoch"] == epoch
    engine.controller.after_update(step_output(5))
    assert len(engine.sent) == 1 and sidecar.page()["confirmed_epoch"] == epoch


def test_newer_order_known_to_the_bell_alone_is_not_confirmed_by_an_older_state(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.controller.attach(lambda: None)  # the scheduler is in a long step
    first = sidecar.order(10 * 32768)
    tick(engine)
    sidecar.order(2 * 32768)
    engine.controller._beat()
    assert sidecar.page()["confirmed_epoch"] == first


def test_raise_is_confirmed_at_once_and_waits_only_for_pages_on_their_way(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.held_orders = []
    sidecar.order(10 * 32768)
    tick(engine)
    epoch = sidecar.order(32 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["confirmed_epoch"] == epoch and page["blocks_free"] == 10
    sidecar.order(20 * 32768)
    tick(engine)
    assert sidecar.page()["blocks_free"] == 10
    sidecar.order(32 * 32768)
    for seq, runs in engine.held_orders:
        engine.answer(seq, runs)
    tick(engine)
    assert sidecar.page()["blocks_free"] == 32


def test_pages_that_could_not_be_given_back_count_as_held(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.fail_with = "no"
    epoch = sidecar.order(10 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["faults"] == 1 and page["confirmed_epoch"] == 0
    assert page["blocks_mapped"] == 32 and page["blocks_pending"] == 22
    engine.fail_with = ""
    sidecar.order(32 * 32768)
    tick(engine)
    assert sidecar.page()["blocks_free"] == 32
    assert sidecar.confirmed(sidecar_epoch(engine, sidecar, 10 * 32768)) and epoch == 1


def sidecar_epoch(engine: FakeEngine, sidecar: FakeSidecar, size: int) -> int:
    epoch = sidecar.order(size)
    tick(engine)
    return epoch


def test_bound_stays_above_the_largest_live_request_and_says_so(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.scheduler.requests["a"] = Request("a", 100, 28)  # 128 tokens: 8 blocks
    epoch = sidecar.order(3 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["flags"] == _page.FLAG_CLAMPED and page["floor_bytes"] == 8 * 32768
    assert page["bound_bytes"] == 8 * 32768 and page["confirmed_epoch"] == 0
    engine.scheduler.requests.clear()
    tick(engine)
    page = sidecar.page()
    assert page["flags"] == 0 and page["confirmed_epoch"] == epoch


def test_silent_sidecar_leaves_the_bound_until_there_is_room(tmp_path: Path, clock: Clock) -> None:
    room = False
    engine = FakeEngine(tmp_path, clock=clock, room=lambda _: room)
    sidecar = FakeSidecar(tmp_path, lease_s=5.0)
    try:
        epoch = sidecar.order(10 * 32768)
        tick(engine)
        clock.now += 4
        engine.controller._beat()
        assert sidecar.page()["flags"] == 0
        clock.now += 2
        engine.controller._beat()
        tick(engine)
        page = sidecar.page()
        assert page["flags"] == _page.FLAG_SIDECAR_GONE and page["bound_bytes"] == 10 * 32768
        room = True
        clock.now += 2
        engine.controller._beat()
        tick(engine)
        page = sidecar.page()
        assert page["flags"] == _page.FLAG_SIDECAR_GONE | _page.FLAG_LEASE_RAISED
        assert page["bound_bytes"] == 32 * 32768 and page["blocks_free"] == 32
        sidecar.beat()
        tick(engine)
        page = sidecar.page()
        assert page["flags"] == 0 and page["bound_bytes"] == 10 * 32768
        assert page["confirmed_epoch"] == epoch
    finally:
        sidecar.close()
        engine.close()


def test_sidecar_that_lives_through_a_long_step_is_not_gone(
    engine: FakeEngine, sidecar: FakeSidecar, clock: Clock
) -> None:
    sidecar.lease_s = 5.0
    sidecar.order(10 * 32768)
    tick(engine)
    clock.now += 60  # the scheduler read nothing for a minute
    sidecar.beat()
    engine.controller._beat()
    assert sidecar.page()["flags"] == 0


def test_older_epoch_and_orders_for_another_engine_are_refused(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    sidecar.order(10 * 32768, epoch=5)
    tick(engine)
    sidecar.order(32 * 32768, epoch=4)
    tick(engine)
    sidecar.order(31 * 32768, epoch=5)
    tick(engine)
    page = sidecar.page()
    assert page["refused"] == 2 and page["requested_epoch"] == 5
    assert page["bound_bytes"] == 10 * 32768
    words = [engine.instance + 1, 9, 0, 1, 0, 1]
    sidecar.path("bound").write_bytes(_page.encode(_page.BOUND_MAGIC, 100, words))
    tick(engine)
    assert sidecar.page()["refused"] == 3


def test_damaged_bound_page_keeps_the_bound_and_is_logged_once(
    engine: FakeEngine, sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    epoch = sidecar.order(10 * 32768)
    tick(engine)
    sidecar.path("bound").write_bytes(b"")
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        tick(engine)
        tick(engine)
    assert [r.getMessage() for r in caplog.records] == [
        f"lull: bound page: page: 0 bytes, want at least 32; the bound stays at epoch {epoch}"
    ]
    page = sidecar.page()
    assert page["flags"] == _page.FLAG_BOUND_CORRUPT and page["bound_bytes"] == 10 * 32768


def test_error_freezes_the_bound_and_lets_vllm_go_on(
    engine: FakeEngine, sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    sidecar.order(10 * 32768)
    tick(engine)

    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    engine.bound.tick = fail  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, "vllm.lull"):
        tick(engine)
        engine.controller.before_schedule()
        engine.controller.after_schedule(step_output())
        engine.controller.after_update(step_output())
    assert [r.getMessage() for r in caplog.records] == [
        "lull: boom; the bound is frozen where it is and vLLM goes on"
    ]
    page = sidecar.page()
    assert page["flags"] & _page.FLAG_BROKEN and page["blocks_free"] == 10
    assert not engine.controller.must_wait(Request("a", 2000, 48))


def test_a_page_that_cannot_be_written_lets_vllm_go_on(
    engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    engine.controller._telemetry.publish = full  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR, "vllm.lull"):
        schedule_one(engine)
        engine.controller.while_it_runs()
        engine.controller.after_update(step_output(17))
        engine.controller.settled(4096, True, 0.001)
        engine.controller._beat()
        tick(engine)
    assert [r.getMessage() for r in caplog.records] == [
        "lull: [Errno 28] No space left on device; the bound is frozen where it is and vLLM goes on"
    ]


@pytest.mark.parametrize("what", ["settled", "_beat"])
def test_an_error_on_another_thread_freezes_the_bound_too(
    engine: FakeEngine, sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    engine.bound.status = fail  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.ERROR, "vllm.lull"):
        for _ in range(2):
            if what == "settled":
                engine.controller.settled(4096, True, 0.001)
            else:
                engine.controller._beat()
    assert [r.getMessage() for r in caplog.records] == [
        "lull: boom; the bound is frozen where it is and vLLM goes on"
    ]
    assert sidecar.page()["flags"] & _page.FLAG_BROKEN


def test_kvcached_that_fails_freezes_its_limit_and_lets_vllm_go_on(
    engine: FakeEngine, sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    pool = 32 * 32768
    answers: list[Any] = [
        {"status": "applied", "mapped_bytes": 0, "effective_limit_bytes": 10 * 32768},
        {"status": "unavailable", "reason": "no_registered_kv_cache_pool"},
    ]
    asked: list[int] = []

    def limit(limit_bytes: int, *, revision: int) -> Any:
        asked.append(limit_bytes)
        return answers[len(asked) - 1]

    engine.controller._bound = KVCachedBound(limit, pool, 32768)
    sidecar.order(10 * 32768)
    tick(engine)
    assert sidecar.page()["bound_bytes"] == 10 * 32768
    sidecar.order(20 * 32768)
    with caplog.at_level(logging.ERROR, "vllm.lull"):
        for _ in range(3):
            tick(engine)
    assert asked == [10 * 32768, 20 * 32768], "it is not asked again"
    assert [r.getMessage() for r in caplog.records] == [
        "lull: kvcached: limit 655360, revision 2: no_registered_kv_cache_pool; "
        "the bound is frozen where it is and vLLM goes on"
    ]
    page = sidecar.page()
    assert page["flags"] & _page.FLAG_BROKEN
    assert not engine.controller.must_wait(Request("a", 2000, 48))


def test_step_that_is_not_vllms_freezes_the_bound_and_lets_vllm_go_on(
    engine: FakeEngine, sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "vllm.lull"):
        engine.controller.before_schedule()
        engine.controller.after_schedule(object())
        engine.controller.while_it_runs()
        engine.controller.after_update(object())
    assert [r.getMessage() for r in caplog.records] == [
        "lull: 'object' object has no attribute 'total_num_scheduled_tokens'; "
        "the bound is frozen where it is and vLLM goes on"
    ]
    assert sidecar.page()["flags"] & _page.FLAG_BROKEN


def test_counts_follow_the_steps(engine: FakeEngine, sidecar: FakeSidecar, clock: Clock) -> None:
    engine.allocate(4, ["a", "b"])
    engine.scheduler.running.append(Request("r", 16, 16))
    engine.scheduler.waiting.append(Request("w", 33, 16))
    engine.controller.before_schedule()
    engine.controller.fell_short()
    engine.controller.after_schedule(step_output(17, ["x", "y"]))
    clock.now += 0.25
    engine.controller.after_update(step_output(17))
    engine.controller.looked_up(40, 16)
    tick(engine)
    page = sidecar.page()
    want = {
        "blocks_used": 4, "blocks_free": 28, "running": 1, "waiting": 1, "waiting_capacity": 1,
        "preemptions": 2, "steps": 1, "step_tokens": 17, "step_ns": 250_000_000,
        "prefix_queries": 40, "prefix_hits": 16, "shortages": 1, "short_bytes": 0,
    }  # fmt: skip
    assert {name: page[name] for name in want} == want
    assert sidecar.bell.recv(16) == b"s"


def schedule_one(engine: FakeEngine) -> None:
    """A step of 17 tokens for one request, which has 4 blocks; it is not with the worker yet."""
    engine.scheduler.running.append(Request("r", 16, 16))
    engine.allocate(4)
    engine.controller.before_schedule()
    engine.controller.after_schedule(step_output(17))


def test_page_shows_a_step_once_the_worker_has_it_and_not_before(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    schedule_one(engine)
    assert sidecar.page()["blocks_used"] == 0, "written on the way to the worker"
    engine.controller.while_it_runs()
    page = sidecar.page()
    assert (page["blocks_used"], page["steps"], page["step_tokens"]) == (4, 1, 17)
    written = page["written_ns"]
    engine.controller.after_update(step_output(17))
    engine.controller.while_it_runs()  # nothing is owed
    assert sidecar.page()["written_ns"] == written, "another step follows and shows it"
    engine.scheduler.running.clear()
    engine.controller.after_update(step_output(17))
    assert sidecar.page()["written_ns"] > written, "the last step shows what it left"


def test_page_shows_a_step_at_its_end_where_nobody_said_that_the_worker_has_it(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    schedule_one(engine)
    engine.controller.after_update(step_output(17))
    page = sidecar.page()
    assert (page["blocks_used"], page["steps"], page["step_tokens"]) == (4, 1, 17)


def test_order_that_rang_is_obeyed_before_the_next_step_takes_blocks(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    epoch = sidecar.order(10 * 32768)
    engine.controller.rang()
    engine.controller.before_schedule()
    assert sidecar.page()["applied_epoch"] == epoch and engine.pool.get_num_free_blocks() == 10


def test_order_whose_bell_was_lost_is_obeyed_while_the_next_step_runs_and_delays_none(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    epoch = sidecar.order(10 * 32768, ring=False)
    schedule_one(engine)
    assert sidecar.page()["applied_epoch"] == 0, "the page was read on the way to the worker"
    engine.controller.while_it_runs()
    page = sidecar.page()
    assert (page["applied_epoch"], page["obeyed_step"], page["blocks_used"]) == (epoch, 1, 4)
    assert page["confirmed_epoch"] == 0, "the step that runs may touch what came out"
    engine.controller.after_update(step_output(17))
    assert sidecar.page()["confirmed_epoch"] == epoch


def test_what_a_step_lacks_is_shown_before_the_bell_rings(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.allocate(32)
    engine.scheduler.waiting.append(Request("a", 33, 16))
    engine.controller.before_schedule()
    engine.controller.fell_short()
    engine.controller.after_schedule(step_output(1))
    assert sidecar.bell.recv(16) == b"s"
    page = sidecar.page()
    assert page["short_bytes"] > 0 and page["blocks_used"] == 32


def test_lasting_shortage_rings_for_news_and_now_and_then(
    engine: FakeEngine, sidecar: FakeSidecar, clock: Clock
) -> None:
    def step(short: bool = True) -> int:
        engine.controller.before_schedule()
        if short:
            engine.controller.fell_short()
        engine.controller.after_schedule(step_output(0))
        return sidecar.rings()

    engine.allocate(32)
    engine.scheduler.waiting.append(Request("a", 33, 16))
    assert [step(), step(), step()] == [1, 0, 0]
    engine.scheduler.waiting.append(Request("b", 33, 16))
    assert [step(), step()] == [1, 0]
    clock.now += 0.02
    assert [step(), step()] == [1, 0]
    assert [step(short=False), step()] == [0, 1]


def test_evictions_by_the_bound_take_the_least_recently_used_first(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    old = engine.allocate(8, [f"old{i}" for i in range(8)])
    engine.pool.free_blocks(old)
    new = engine.allocate(8, [f"new{i}" for i in range(8)])
    engine.pool.free_blocks(new)
    tick(engine)
    assert sidecar.page()["blocks_cached"] == 16
    sidecar.order(10 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["evictions"] == 6 and page["blocks_cached"] == 10
    assert all(f"new{i}" in engine.pool.cached for i in range(8))


def test_page_says_at_which_step_an_order_was_obeyed_and_that_nothing_free_was_left(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    def step() -> None:
        engine.controller.before_schedule()
        engine.controller.after_schedule(step_output(1))
        engine.controller.after_update(step_output(1))

    step()
    step()
    used = engine.pool.get_new_blocks(20)
    sidecar.order(10 * 32768)  # less than is in use
    engine.controller.rang()
    step()
    page = sidecar.page()
    assert page["blocks_free"] == 0 and page["applied_epoch"] == 0
    assert (page["steps"], page["obeyed_step"], page["obeyed_left"]) == (3, 2, 0)
    engine.pool.free_blocks(used)
    step()
    page = sidecar.page()
    assert page["applied_epoch"] == 1 and page["obeyed_step"] == 2  # of the order, not of its end


def test_page_says_how_many_free_blocks_a_live_request_kept_from_an_order(
    engine: FakeEngine, sidecar: FakeSidecar
) -> None:
    engine.scheduler.requests["long"] = Request("long", 16, 16 * 15)
    sidecar.order(10 * 32768)
    tick(engine)
    page = sidecar.page()
    assert page["flags"] & _page.FLAG_CLAMPED and page["obeyed_left"] == page["blocks_free"] > 0
