"""Orders: the ceiling is a promise, memory really falls, and each way of freeing is used where it should be."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lull._protocol import Ack, Budget, Pace
from lull._torch.costs import Plan
from lull._torch.cpu import own_memory

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Recorder, text_loss

pytestmark = pytest.mark.cpu


def job(width: int = 128, samples: int = 32, **options: object) -> tuple[Recorder, Callable[[], None]]:
    """A GPT and one training step of `samples` samples in one microbatch."""
    torch.manual_seed(11)
    model = Gpt(width=width)
    rec = Recorder(model, torch.optim.AdamW(model.parameters()), **{"budget": 256 * MIB, **options})
    ids = torch.randint(0, 256, (samples, 65))

    def step() -> None:
        rec.elastic.backward(ids, text_loss(model))
        rec.elastic.optimizer.step()
        rec.elastic.optimizer.zero_grad()

    step()
    rec.elastic.memory.observe(samples, 90 * MIB)
    for _ in range(3):
        step()
    return rec, step


def at(rec: Recorder, moment: str, act: Callable[[], None], runs: int = 5) -> None:
    """Calls act once, from the loss function's forward or from its backward, when so many blocks have run."""
    elastic = rec.elastic
    done: list[bool] = []
    point = elastic.orders.safe_point

    def hooked() -> None:
        table = elastic._table
        backward = elastic.hooks.table is None
        ready = table is not None and len(table.runs) >= runs and backward == (moment == "backward")
        if ready and not done:
            done.append(True)
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        point()

    elastic.orders.safe_point = hooked  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_order_is_acked_by_emptying_before_the_microbatch_goes_on(moment: str) -> None:
    rec, step = job()
    seen: list[tuple[int, int]] = []

    def act() -> None:
        target = rec.elastic.device.pool.in_use() * 2 // 3
        rec.order(target)
        seen.append((len(rec.acks), rec.elastic.device.pool.resident()))

    at(rec, moment, act)
    step()
    order, ack = rec.acks[-1]
    assert seen[0][0] == len(rec.acks), "acked while the training thread stood still"
    assert seen[0][1] <= order.bytes
    assert ack.how == "drop"
    assert ack.held <= order.bytes
    assert rec.elastic.stats.recomputed > 0
    assert rec.elastic.stats.discards == 0
    rec.elastic.close()


def test_cached_memory_goes_first() -> None:
    rec, _ = job()
    assert rec.elastic.device.pool.in_use() == 0
    resident = rec.elastic.device.pool.resident()
    rec.order(resident - 8 * MIB)
    assert rec.acks[-1][1].how == "cached"
    assert rec.elastic.device.pool.resident() <= resident - 8 * MIB
    rec.order(resident)
    assert rec.acks[-1][1].how == "nothing"
    rec.elastic.close()


def test_bytes_really_leave_the_process() -> None:
    rec, step = job(samples=64)
    before = own_memory()
    resident = rec.elastic.device.pool.resident()
    rec.order(resident - 32 * MIB)
    assert before - own_memory() > 31 * MIB
    rec.order(0)
    assert before - own_memory() > resident - MIB
    rec.order(256 * MIB)
    step()
    rec.elastic.close()


def test_resident_never_passes_an_acked_ceiling_in_a_thousand_orders() -> None:
    rec, step = job(width=64, samples=32)
    pool = rec.elastic.device.pool
    over = threading.Event()
    above: list[tuple[int, int]] = []

    def sample() -> None:
        while not over.wait(0.0002):
            promise = rec.promise
            resident = pool.resident()
            if promise is not None and resident > promise.held and rec.promise is promise:
                above.append((resident, promise.held))

    watcher = threading.Thread(target=sample)
    watcher.start()
    turns = 0
    while len(rec.acks) < 1000:
        turns += 1
        with rec.storm(turns, 3 * MIB, 40 * MIB, gap=(0.0, 0.004)):
            step()
    over.set()
    watcher.join()
    assert above == []
    assert rec.overdrafts == 0
    for order, ack in rec.acks:
        assert ack.epoch == order.epoch
        # Gradients and the optimizer's state live on from one microbatch to the next: "part", in whole units.
        most = 8 * MIB if ack.how == "part" else order.bytes
        assert ack.how == "superseded" or ack.held <= most
    rec.elastic.close()


def test_every_order_is_answered_exactly_once() -> None:
    rec, step = job()
    with rec.storm(3, 4 * MIB, 80 * MIB, gap=(0.0, 0.003)):
        step()
    rec.elastic.close()
    assert sorted(ack.epoch for _, ack in rec.acks) == list(range(1, rec._epoch + 1))


def test_a_suspended_microbatch_goes_on_when_memory_comes_back() -> None:
    rec, step = job(width=256)
    orders = rec.elastic.orders

    waits: list[float] = []

    def patient(now: float) -> float:
        if not waits:
            threading.Timer(0.05, lambda: rec.order(256 * MIB)).start()
        waits.append(now)
        return 30.0

    def act() -> None:
        table = rec.elastic._table
        assert table is not None
        rec.order(table.input_bytes() + table.outside + 16 * MIB)

    orders._patience = patient  # type: ignore[method-assign]
    at(rec, "backward", act)
    step()
    assert orders.suspended_s > 0.05
    assert rec.elastic.stats.discards == 0
    assert rec.elastic.stats.recomputed > 0
    rec.elastic.close()


def test_a_suspended_microbatch_ends_in_time_for_a_deadline() -> None:
    rec, step = job(width=256)
    orders = rec.elastic.orders
    owed: list[float] = []

    def patient(now: float) -> float:
        if not owed:
            owed.append(time.monotonic())
            orders.apply(Budget(50, 0, within_us=30_000), lambda ack: rec.acks.append((Budget(50, 0), ack)))
        return 30.0

    def act() -> None:
        table = rec.elastic._table
        assert table is not None
        rec.order(table.input_bytes() + table.outside + 16 * MIB)

    def later(order: Budget) -> None:
        orders.apply(order, lambda ack: None)

    discarded = orders.discarded

    def undone(samples: int) -> None:
        discarded(samples)
        later(Budget(51, 256 * MIB))

    orders._patience = patient  # type: ignore[method-assign]
    orders.discarded = undone  # type: ignore[method-assign]
    at(rec, "backward", act)
    step()
    ack = next(ack for order, ack in rec.acks if order.epoch == 50)
    assert ack.how == "discard"
    assert 0.01 <= (ack.waited_us + ack.freed_us) / 1e6 < 5
    assert rec.elastic.stats.discards == 1
    rec.elastic.close()


def test_microbatch_that_ends_in_time_finishes_and_nothing_is_computed_twice() -> None:
    rec, step = job()
    orders = rec.elastic.orders
    at(rec, "forward", lambda: rec.order(8 * MIB, within_us=60_000_000))
    step()
    order, ack = rec.acks[0]
    assert ack.how == "finish"
    assert ack.held <= order.bytes
    assert ack.spans[0].name == "let the microbatch finish"
    assert rec.elastic.stats.recomputed == rec.elastic.stats.discards == 0
    assert "loses nothing" in orders.why
    assert orders.ceiling == 8 * MIB
    assert {cost.how for cost in rec.elastic.report().costs} == {"finish"}
    rec.elastic.close()


def test_microbatch_that_is_slower_than_planned_is_emptied_before_the_deadline() -> None:
    rec, step = job()
    orders = rec.elastic.orders
    orders.costs.choose = lambda *situation: Plan("finish", 1.0, "told to")  # type: ignore[method-assign]
    took: list[float] = []

    def act() -> None:
        began = time.monotonic()
        rec.order(rec.elastic.device.pool.in_use() * 2 // 3, within_us=60_000_000)
        assert rec.acks == []
        assert orders.ceiling == 256 * MIB, "nothing is lowered while the microbatch may finish"
        while not rec.acks and time.monotonic() - began < 50:
            time.sleep(0.001)  # the training thread stands still: only the steward can answer
        took.append(time.monotonic() - began)

    at(rec, "forward", act)
    step()
    assert 1.0 <= took[0] < 50
    assert rec.acks[0][1].how == "drop"
    assert rec.elastic.stats.recomputed > 0
    rec.elastic.close()


def test_short_deadline_and_none_at_all_are_met_at_once() -> None:
    rec, step = job()
    for within in (0, 1000):
        at(rec, "forward", lambda within=within: rec.order(8 * MIB, within_us=within))
        step()
        rec.order(256 * MIB)
        step()
    assert "finish" not in [ack.how for _, ack in rec.acks]
    rec.elastic.close()


def test_what_orders_cost_is_learned_and_reported() -> None:
    rec, step = job(samples=64)
    for n in range(6):
        at(rec, "backward", lambda n=n: rec.order(rec.elastic.device.pool.in_use() * (n + 3) // 10))
        step()
        rec.order(256 * MIB)
        step()
    costs = {cost.how: cost for cost in rec.elastic.report().costs}
    assert costs["drop"].fixed_us + 8 * costs["drop"].us_per_mib > 0
    assert costs["drop"].lost_sample_s > 0, "what was computed again is counted"
    rec.elastic.close()


def test_an_order_to_nothing_discards_and_training_goes_on_later() -> None:
    rec, step = job()
    params = [p.detach().clone() for p in rec.elastic.model.parameters()]
    del params

    def act() -> None:
        rec.order(0, then=lambda: rec.order(256 * MIB))

    at(rec, "forward", act)
    step()
    hows = [ack.how for _, ack in rec.acks]
    assert hows[0] == "discard"
    assert rec.acks[0][1].samples_discarded == 32
    assert rec.elastic.stats.discards >= 1
    rec.elastic.close()


def test_discard_in_backward_leaves_gradients_as_they_were() -> None:
    rec, _ = job()
    elastic = rec.elastic
    ids = torch.randint(0, 256, (32, 65))
    state = torch.get_rng_state()
    elastic.backward(ids, text_loss(elastic.model))
    want = [p.grad.clone() for p in elastic.model.parameters() if p.grad is not None]
    elastic.optimizer.zero_grad()
    torch.set_rng_state(state)
    touched: list[bool] = []
    point = elastic.orders.safe_point

    def hooked() -> None:
        table = elastic._table
        reached = any(b.touched for b in elastic._gradients._buffers)
        if not touched and table is not None and elastic.hooks.table is None and reached:
            touched.append(True)
            elastic.orders.ordered = elastic.orders._discard = elastic.orders._flag = True
        point()

    elastic.orders.safe_point = hooked  # type: ignore[method-assign]
    elastic.backward(ids, text_loss(elastic.model))
    assert touched
    assert elastic.stats.discards == 1
    got = [p.grad for p in elastic.model.parameters() if p.grad is not None]
    assert rec.parts[-1] == 32
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    elastic.close()


@pytest.mark.parametrize(("release", "how"), [("microbatch", "finish"), ("batch", "finish"), ("next-saved", "discard")])
def test_other_releases_answer_when_they_say(release: str, how: str) -> None:
    rec, step = job(release=release)
    when: list[str] = []
    orders = rec.elastic.orders

    def reply(ack: Ack) -> None:
        when.append("in the microbatch" if orders._table is not None else "between")
        rec.acks.append((Budget(ack.epoch, 0), ack))
        threading.Thread(target=rec.order, args=(256 * MIB,)).start()

    def act() -> None:
        orders.apply(Budget(1, 20 * MIB), reply)
        assert rec.acks == []
        assert orders.ceiling == 256 * MIB

    at(rec, "forward", act)
    step()
    assert rec.acks[0][1].how == how
    assert when == ["between"]
    rec.elastic.close()


def test_release_outside_a_batch_needs_no_waiting() -> None:
    rec, _ = job(release="batch")
    rec.order(8 * MIB)
    assert rec.acks[-1][1].how == "cached"
    rec.elastic.close()


def test_lease_end_goes_to_the_min_budget_and_never_above_the_last_grant() -> None:
    rec, _ = job(min_budget=24 * MIB)
    rec.order(64 * MIB)
    rec.elastic.lease_ended()
    assert rec.elastic.orders.ceiling == 24 * MIB
    rec.order(16 * MIB)
    rec.elastic.lease_ended()
    assert rec.elastic.orders.ceiling == 16 * MIB
    rec.elastic.close()


def test_misprediction_is_caught_split_and_learned() -> None:
    rec, step = job(samples=64)
    elastic = rec.elastic
    rec.order(24 * MIB)
    for _ in range(20):
        elastic.memory.observe(64, 2 * MIB)  # a model that promises far too much
    rec.parts.clear()
    step()
    assert sum(rec.parts) == 64
    assert len(rec.parts) > 1 or elastic.stats.recomputed > 0
    for _ in range(3):
        step()
    assert rec.overdrafts == 0
    rec.elastic.close()


def test_pace_zero_holds_training_at_a_block_until_its_lease_ends() -> None:
    rec, step = job()
    began = time.monotonic()
    rec.elastic.pace(Pace(0.0, "test", lease_ms=300))
    step()
    assert time.monotonic() - began > 0.28
    rec.elastic.close()


STILL = Pace(0.0, "test", lease_ms=60_000)
GO = Pace(1.0, "test", lease_ms=0)


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_training_stops_at_the_next_block_of_either_pass(moment: str) -> None:
    rec, step = job()
    elastic = rec.elastic
    blocks: list[int] = []
    stopped = threading.Event()
    pause = elastic._pacer._changed.wait

    def waiting(timeout: float | None = None) -> bool:
        stopped.set()
        return pause(timeout)

    def act() -> None:
        elastic._pacer._changed.wait = waiting  # type: ignore[method-assign]
        elastic.pace(STILL)
        gate = elastic._pacer.gate
        elastic._pacer.gate = lambda: (blocks.append(1), gate())[1]  # type: ignore[method-assign]

    at(rec, moment, act, runs=2)
    training = threading.Thread(target=step)
    training.start()
    assert stopped.wait(60), f"training ran through its {moment} pass"
    assert len(blocks) == 1
    assert (elastic.hooks.table is None) == (moment == "backward")
    elastic.pace(GO)
    training.join(60)
    assert not training.is_alive()
    rec.elastic.close()


def test_order_that_needs_the_training_thread_is_met_while_it_yields() -> None:
    rec, step = job(release="microbatch")
    elastic = rec.elastic
    stopped = threading.Event()
    pause = elastic._pacer._changed.wait

    def waiting(timeout: float | None = None) -> bool:
        stopped.set()
        return pause(timeout)

    elastic._pacer._changed.wait = waiting  # type: ignore[method-assign]
    at(rec, "backward", lambda: elastic.pace(STILL))
    training = threading.Thread(target=step)
    training.start()
    assert stopped.wait(60)
    resident = elastic.device.pool.resident()
    rec.order(resident // 2)  # only the end of the microbatch can meet it
    training.join(60)
    assert not training.is_alive(), "the order waited for a thread that yields"
    assert rec.acks[-1][1].held <= resident // 2
    assert rec.acks[-1][1].how == "finish"
    rec.elastic.close()


@pytest.mark.parametrize("while_it_works", [False, True])
def test_order_that_cannot_be_met_in_full_is_answered_with_what_stays(while_it_works: bool) -> None:
    rec, step = job()
    pool = rec.elastic.device.pool
    before = pool.enable(True)
    kept = torch.zeros(8 * MIB // 4)  # a cache of the user's, say, made in a forward pass
    pool.enable(before)
    assert pool.in_use() >= kept.nbytes
    if while_it_works:
        at(rec, "forward", lambda: rec.order(0, within_us=5_000, then=lambda: rec.order(256 * MIB)))
        step()
    else:
        rec.order(0)
    _, ack = next(pair for pair in rec.acks if pair[0].bytes == 0)
    assert ack.how == "part"
    assert kept.nbytes <= ack.held < kept.nbytes + 8 * MIB
    assert pool.resident() <= max(ack.held, rec.elastic.orders.ceiling)
    rec.order(256 * MIB)
    step()
    del kept
    rec.elastic.close()
