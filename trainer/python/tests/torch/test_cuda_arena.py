"""The CUDA arena as a pool, on stand-ins of PyTorch's allocator and of the driver."""

from __future__ import annotations

import threading

import pytest
import torch
from cuda_rig import MIB, FakeTorch, compiler, pool_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lull._torch.cuda_arena import CudaArenaPool

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C compiler for the fake driver")]

BIG = 16 * MIB


def elsewhere(call) -> int:  # type: ignore[no-untyped-def]
    """What a call returns on another thread: an order's."""
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(call()))
    thread.start()
    thread.join()
    return seen[0]


def test_memory_is_the_pools_only_inside_a_pass() -> None:
    pool, books = pool_of()
    books.outside = 100 * MIB
    assert pool.enable(True) is False
    assert pool.enable(True) is True
    block = books.alloc(BIG)
    assert (pool.in_use(), pool.resident()) == (BIG, BIG)
    assert pool.enable(False) is True
    assert books.inside is None
    assert pool.in_use() == BIG, "what lives on after the pass counts on"
    books.free(block)
    assert (pool.in_use(), pool.resident()) == (0, BIG)


def test_in_the_middle_of_a_pass_the_training_thread_renews_the_pool_and_the_device_is_not_waited_for() -> None:
    pool, books = pool_of()
    pool.enable(True)
    keep, drop = books.alloc(BIG), books.alloc(BIG)
    books.free(drop)
    assert pool.trim(BIG) == 0, "its kernel is queued"
    assert (pool.renewals, pool.coming()) == (1, BIG)
    books.driver.run_all()
    assert elsewhere(lambda: pool.trim(BIG)) == BIG, "any thread gives back what is complete"
    assert (pool.resident(), pool.in_use(), pool.coming()) == (BIG, BIG, 0)
    assert books.inside == (0, 2)
    assert books.alloc(BIG) != keep
    pool.enable(False)
    assert books.errors == []
    assert books.driver.violations() == ""


def test_another_thread_does_not_touch_the_pool_that_training_is_in() -> None:
    pool, books = pool_of()
    pool.enable(True)
    books.free(books.alloc(BIG))
    books.driver.run_all()
    assert elsewhere(lambda: pool.trim(0)) == 0
    assert (pool.renewals, pool.coming()) == (0, BIG), "it comes at the training thread's next safe point"
    pool.trim(0)
    books.driver.run_all()
    assert pool.trim(0) == BIG


def test_between_passes_any_thread_gives_everything_back() -> None:
    pool, books = pool_of()
    pool.enable(True)
    books.free(books.alloc(BIG))
    pool.enable(False)
    assert elsewhere(lambda: pool.trim(0)) == 0
    assert (pool.renewals, pool.coming()) == (1, BIG)
    books.driver.run_all()
    assert elsewhere(lambda: pool.trim(0)) == BIG
    assert pool.resident() == 0
    assert books.errors == []


def test_what_lives_on_in_an_old_pool_comes_back_with_a_later_renewal() -> None:
    pool, books = pool_of()
    pool.enable(True)
    loss, rest = books.alloc(1000), books.alloc(BIG)
    books.free(rest)
    pool.trim(0)
    books.driver.run_all()
    pool.trim(0)
    assert pool.resident() == pool.unit, "the loss pins one handle"
    assert pool.coming() == 0, "and no order waits for that"
    books.free(loss)
    assert pool.coming() > 0
    pool.trim(0)
    books.driver.run_all()
    pool.trim(0)
    assert pool.resident() == 0
    pool.enable(False)
    assert books.errors == []


def test_an_order_that_nothing_can_meet_renews_no_pool_again_and_again() -> None:
    pool, books = pool_of()
    pool.enable(True)
    books.alloc(BIG)
    pool.trim(0)
    for _ in range(20):
        pool.trim(0)
    assert pool.renewals <= 1


def test_above_the_cap_an_allocation_is_an_out_of_memory_error_before_bytes_are_taken() -> None:
    pool, books = pool_of()
    pool.set_cap(BIG)
    pool.enable(True)
    books.alloc(BIG)
    with pytest.raises(torch.OutOfMemoryError, match="above the cap of 16777216, with 16777216 resident"):
        books.alloc(BIG)
    assert pool.resident() == BIG
    assert pool.counters()["failures"] == 1
    pool.enable(False)


def test_no_cap_is_one_that_the_driver_can_hold() -> None:
    pool, _ = pool_of()
    pool.set_cap(1 << 62)
    assert pool.vmm.stats.cap == 1 << 60


def test_a_renewal_that_failed_is_made_up_for_at_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, books = pool_of()
    pool.enable(True)
    books.free(books.alloc(BIG))
    pool.enable(False)

    def refuse() -> None:
        raise RuntimeError("no pool")

    with monkeypatch.context() as patch:
        patch.setattr(books, "place", refuse)
        with pytest.raises(RuntimeError, match="no pool"):
            pool.trim(0)
    pool.enable(True)
    books.free(books.alloc(BIG))
    pool.enable(False)
    pool.trim(0)
    books.driver.run_all()
    pool.trim(0)
    assert pool.resident() == 0
    assert books.errors == []


def test_above_asks_pytorch_only_when_segments_alone_do_not_settle_it() -> None:
    pool, books = pool_of()
    pool.enable(True)
    asked = 0
    allocated = books.allocated

    def counted() -> int:
        nonlocal asked
        asked += 1
        return allocated()

    block = books.alloc(5 * MIB)
    books.allocated = counted  # type: ignore[method-assign]
    assert not pool.above(20 * MIB)
    assert asked == 0
    assert pool.above(4 * MIB)
    assert not pool.above(6 * MIB)
    assert asked == 2
    books.free(block)


def test_a_wait_of_the_steward_ends_on_wake() -> None:
    pool, _ = pool_of()
    pool.wake()
    assert pool.wait_short(30_000_000) == 1
    assert pool.wait_short(1) == 0


STEP = st.one_of(
    st.tuples(st.just("alloc"), st.integers(1, 24 * MIB)),
    st.tuples(st.just("free"), st.integers(0, 50)),
    st.tuples(st.sampled_from(["inside", "outside", "trim elsewhere", "run"]), st.integers(0, 12)),
    st.tuples(st.sampled_from(["trim", "cap"]), st.integers(0, 30)),
)


def step(pool: CudaArenaPool, books: FakeTorch, live: list[int], kind: str, n: int) -> None:
    if kind == "alloc" and books.inside is not None:
        try:
            live.append(books.alloc(n))
        except torch.OutOfMemoryError:
            assert pool.vmm.why().endswith("nothing was taken")
    elif kind == "free" and live:
        books.free(live.pop(n % len(live)))
    elif kind in ("inside", "outside"):
        pool.enable(kind == "inside")
    elif kind == "trim":
        pool.trim(n * 8 * MIB)
    elif kind == "trim elsewhere":
        elsewhere(lambda: pool.trim(n * 8 * MIB))
    elif kind == "run":
        books.driver.run(1, n)
    elif kind == "cap":
        pool.set_cap(n * 8 * MIB)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=70))
def test_whatever_comes_the_books_are_right_and_all_comes_back(steps: list[tuple[str, int]]) -> None:
    pool, books = pool_of()
    live: list[int] = []
    for kind, n in steps:
        cap, before = pool.vmm.stats.cap, pool.resident()
        step(pool, books, live, kind, n)
        assert pool.resident() <= max(cap, before)
        assert pool.in_use() == books.allocated()
        assert pool.resident() >= books.reserved() >= pool.in_use()
        assert 0 <= pool.coming() <= pool.resident()
        assert pool.above(pool.in_use()) is False
        assert books.errors == []
        assert books.driver.violations() == ""
    pool.enable(False)
    for block in live:
        books.free(block)
    pool.trim(0)
    books.driver.run_all()
    pool.trim(0)
    assert pool.resident() == pool.coming() == books.reserved() == 0
