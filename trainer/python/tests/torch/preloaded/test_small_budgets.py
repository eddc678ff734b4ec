"""A budget near the smallest: one sample trains in what the job says it needs, and no order ends the job."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

import lull
from lull._errors import RuntimeRefusal
from lull._greeting import say_bytes
from lull._torch.micro import _TRIES, _Failure

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Mlp, Recorder, attach, text_loss

pytestmark = pytest.mark.cpu

HIGH = 256 * MIB


def square(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    return lambda b: model(b).square().mean()


def rows() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4)), nn.Linear(512, 10))


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], Any]] = {
    "rows": (rows, lambda: torch.randn(64, 512), square),
    "matrices": (rows, lambda: torch.randn(64, 64, 512), square),
    "mlp": (Mlp, lambda: torch.randn(32, 64, 256), square),
    "gpt": (Gpt, lambda: torch.randint(0, 256, (16, 65)), text_loss),
    "wide gpt": (lambda: Gpt(width=192, length=128), lambda: torch.randint(0, 256, (16, 129)), text_loss),
}


@pytest.mark.parametrize("name", JOBS)
def test_job_trains_on_at_its_minimum_once_its_sidecar_is_gone(name: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(1)
    make, draw, loss_of = JOBS[name]
    model, batch = make(), draw()
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=HIGH)
    loss = loss_of(model)
    rec.elastic.backward(batch, loss)
    rec.order(HIGH)
    rec.elastic.lease_ended()
    assert rec.elastic.orders.ceiling == rec.elastic.min_budget < HIGH
    rec.parts.clear()
    failed: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(3):
                rec.elastic.backward(batch, loss)
        except lull.LullError as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    stuck = thread.is_alive()
    rec.order(HIGH)  # lets a thread go that waits for memory
    thread.join(60)
    assert not stuck
    assert failed == []
    assert sum(rec.parts) == 3 * len(batch)
    assert "training waits" not in caplog.text
    assert rec.overdrafts == 0
    rec.elastic.close()


def test_minimum_is_in_whole_units_of_the_pool_and_above_one_sample() -> None:
    model = Gpt()
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=HIGH)
    assert rec.elastic.min_budget == 0, "not known yet"
    rec.elastic.backward(torch.randint(0, 256, (4, 65)), text_loss(model))
    pool = rec.elastic.device.pool
    assert rec.elastic.min_budget % pool.unit == 0
    assert rec.elastic.min_budget >= rec.elastic.memory.bytes(1) + pool.unit
    assert rec.elastic.hello().min_budget == rec.elastic.min_budget
    rec.elastic.close()


def test_waiting_for_a_budget_in_which_one_sample_fits_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Gpt()
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=HIGH)
    ids = torch.randint(0, 256, (4, 65))
    rec.elastic.backward(ids, text_loss(model))
    rec.order(1)
    wait, waits = rec.elastic.orders.await_ceiling, []

    def awaiting(above: int, timeout: float) -> bool:
        waits.append(timeout)
        if len(waits) > 3:
            threading.Thread(target=lambda: rec.order(HIGH)).start()
        return wait(above, timeout if len(waits) > 3 else 0.0)

    rec.elastic.orders.await_ceiling = awaiting  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, logger="lull"):
        rec.elastic.backward(ids, text_loss(model))
    said = [r.getMessage() for r in caplog.records if "training waits" in r.getMessage()]
    assert said == [
        f"elastic.backward: a microbatch of 1 does not fit into 1 B, want about {say_bytes(rec.elastic.least)}; "
        "training waits for a larger budget"
    ]
    assert waits[:4] == [1.0] * 4
    rec.elastic.close()


def learned() -> Recorder:
    model = Gpt()
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=HIGH)
    rec.elastic.backward(torch.randint(0, 256, (4, 65)), text_loss(model))
    return rec


@pytest.mark.parametrize(("ordered", "disturbed"), [(True, True), (False, True)])
def test_microbatches_that_orders_undo_never_end_the_job(ordered: bool, disturbed: bool) -> None:
    rec = learned()
    for _ in range(3 * _TRIES):
        rec.elastic._discarded(1, 0.01, _Failure(HIGH, ordered, disturbed, None))
    rec.elastic.close()


def test_sample_that_should_fit_and_never_does_ends_the_job_after_some_tries() -> None:
    rec = learned()
    cause = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    for _ in range(_TRIES):
        rec.elastic._discarded(1, 0.01, _Failure(HIGH, False, False, cause))
    with pytest.raises(lull.RuntimeRefusal, match="a microbatch of 1 does not fit") as refused:
        rec.elastic._discarded(1, 0.01, _Failure(HIGH, False, False, cause))
    assert refused.value.__cause__ is cause
    rec.elastic.close()


def test_ceiling_that_rose_again_before_the_failure_is_seen_is_no_ceiling_that_was_tried() -> None:
    rec = learned()
    failures: list[_Failure] = []
    discarded = rec.elastic._discarded

    def recording(samples: int, took: float, failure: _Failure) -> None:
        failures.append(failure)
        discarded(samples, took, failure)

    rec.elastic._discarded = recording  # type: ignore[method-assign]
    model = rec.elastic.model

    def loss(ids: torch.Tensor) -> torch.Tensor:
        if not failures:
            for bytes in (MIB, HIGH):
                thread = threading.Thread(target=rec.order, args=(bytes,))
                thread.start()
                thread.join()
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return text_loss(model)(ids)

    rec.elastic.backward(torch.randint(0, 256, (4, 65)), loss)
    assert [(f.ceiling, f.disturbed) for f in failures] == [(MIB, True)]
    assert rec.elastic._failures == 0
    rec.elastic.close()


def test_storm_between_nothing_and_plenty_does_not_end_the_job() -> None:
    rec = learned()
    over = threading.Event()

    def blow() -> None:
        turn = 0
        while not over.wait(0.001):
            turn += 1
            rec.order(HIGH if turn % 2 else 1)
        rec.order(HIGH)

    thread = threading.Thread(target=blow)
    thread.start()
    calm = threading.Timer(3, over.set)
    calm.start()
    try:
        while not over.is_set():
            rec.elastic.backward(torch.randint(0, 256, (4, 65)), text_loss(rec.elastic.model))
    finally:
        over.set()
        calm.cancel()
        thread.join()
        rec.elastic.close()


@pytest.mark.parametrize("budget", [0, 1, "512", "64KiB"])
def test_budget_that_is_far_too_small_is_refused_in_words(budget: int | str) -> None:
    """A number without a unit is bytes, which few mean."""
    torch.manual_seed(1)
    model = Gpt(width=192)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=budget)
    said = say_bytes(elastic.orders.ceiling)
    with pytest.raises(
        RuntimeRefusal,
        match=rf"budget: a dry step of 1 does not fit into {said}, want more in budget= or LULL_BUDGET \(a number "
        r"without a unit is bytes\); nothing was trained$",
    ) as refused:
        elastic.backward(torch.randint(0, 256, (4, 65)), text_loss(model))
    assert "DefaultCPUAllocator" in str(refused.value.__cause__)
    assert elastic.device.pool.in_use() == 0
    assert all(p.grad is None for p in model.parameters())
