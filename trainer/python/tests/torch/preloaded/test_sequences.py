"""Any sequence of orders, at any moment of a step: the same partition gives the same bits, and every trace of a
microbatch that was undone is gone. The moments are drawn, and met exactly: nothing here depends on time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
import torch.nn as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.utils.data import RandomSampler

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXACT, Case
from models import MIB, Recorder, twin
from test_exact import plain, same_gradients, same_optimizer

pytestmark = pytest.mark.cpu

HIGH = 48 * MIB
BATCHES, SIZE = 3, 24


@dataclass(frozen=True)
class Moment:
    """The `nth` point of this kind in batch `batch`, where an order to `bytes` comes."""

    batch: int
    kind: str
    nth: int
    bytes: int


MOMENTS = st.lists(
    st.builds(
        Moment,
        st.integers(0, BATCHES - 1),
        st.sampled_from(["forward", "backward", "commit", "step", "loading"]),
        st.integers(0, 60),
        st.one_of(st.just(0), st.just(HIGH), st.integers(6 * MIB, HIGH)),
    ),
    max_size=10,
)


class Conductor:
    """Gives the orders of a plan at their moments, from another thread, while the training thread stands still."""

    def __init__(self, rec: Recorder, plan: list[Moment]) -> None:
        self.rec = rec
        self.plan = plan
        self.batch = 0
        self.counts: dict[str, int] = {}
        self.given = 0
        elastic, orders = rec.elastic, rec.elastic.orders
        point, commit = orders.safe_point, elastic._gradients.commit

        def at_point() -> None:
            if elastic._table is not None:
                self.reach("forward" if elastic.hooks.table is not None else "backward")
            point()

        def at_commit() -> None:
            self.reach("commit")
            commit()

        orders.safe_point = at_point  # type: ignore[method-assign]
        elastic._gradients.commit = at_commit  # type: ignore[method-assign]
        # Who waits for memory gets it soon, so that a plan that ends at 0 goes on.
        orders._patience = lambda now: 0.02  # type: ignore[method-assign]
        orders.await_ceiling = self.rescue  # type: ignore[method-assign]

    def rescue(self, above: int, timeout: float) -> bool:
        self.rec.order(HIGH)
        return True

    def reach(self, kind: str) -> None:
        nth = self.counts.get(kind, 0)
        self.counts[kind] = nth + 1
        for moment in self.plan:
            if (moment.batch, moment.kind, moment.nth) == (self.batch, kind, nth):
                self.given += 1
                thread = threading.Thread(target=self.rec.order, args=(moment.bytes,))
                thread.start()
                thread.join()

    def next_batch(self, batch: int) -> None:
        self.batch, self.counts = batch, {}


@pytest.mark.parametrize("name", ["cnn with batchnorm", "transformer with dropout", "mean over tokens"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=MOMENTS)
def test_any_sequence_of_orders_gives_the_same_bits(name: str, plan: list[Moment]) -> None:
    play(EXACT[name], plan)


def test_orders_in_every_part_of_a_step_are_given_and_bite() -> None:
    plan = [
        Moment(0, "loading", 0, HIGH),
        Moment(0, "forward", 20, 8 * MIB),
        Moment(0, "step", 0, HIGH),
        Moment(1, "backward", 3, 6 * MIB),
        Moment(1, "commit", 0, 0),
        Moment(2, "loading", 0, HIGH),
        Moment(2, "backward", 10, 0),
    ]
    rec, given = play(EXACT["transformer with dropout"], plan)
    assert given >= len(plan)
    assert rec.elastic.stats.dropped > 0
    assert rec.elastic.stats.recomputed > 0
    assert rec.elastic.stats.discards > 0


def play(case: Case, plan: list[Moment]) -> tuple[Recorder, int]:
    """Trains through the plan and beside it undisturbed, and compares everything; how many orders were given."""
    torch.manual_seed(7)
    model = case.make()
    other = twin(model)
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, other))
    rec = Recorder(model, ours, budget=HIGH)
    rec.elastic.memory.observe(SIZE, 18 * MIB)
    rec.elastic.backward(case.draw(2), case.loss_of(model))  # the dry step comes before all orders
    ours.zero_grad()
    conductor = Conductor(rec, plan)
    ours.register_step_pre_hook(lambda *_: conductor.reach("step"))
    other.load_state_dict(model.state_dict())
    data = case.draw(SIZE * BATCHES)
    sampler = RandomSampler(range(SIZE * BATCHES), generator=torch.Generator().manual_seed(5))
    used: list[int] = []
    state = torch.get_rng_state()

    for i, rows in enumerate(chunks(iter(sampler))):
        conductor.next_batch(i)
        conductor.reach("loading")
        used += rows
        batch = pick(data, rows)
        torch.set_rng_state(state)
        rec.parts.clear()
        rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        plain(case, other, batch, rec.parts)
        assert torch.equal(after, torch.get_rng_state())
        state = after
        assert sum(rec.parts) == SIZE
        same_gradients(model, other, f"in batch {i}")
        for opt in (ours, theirs):
            opt.step()
            opt.zero_grad()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    same_optimizer(ours, theirs)
    assert sorted(used) == list(range(SIZE * BATCHES))
    pool = rec.elastic.device.pool
    assert rec.overdrafts == 0
    assert pool.counters()["blocks"] == 0
    rec.elastic.close()
    assert sorted(ack.epoch for _, ack in rec.acks) == list(range(1, rec._epoch + 1)), "each order is answered once"
    return rec, conductor.given


def chunks(rows: Iterator[int]) -> Iterator[list[int]]:
    for _ in range(BATCHES):
        yield [next(rows) for _ in range(SIZE)]


def pick(data: Any, rows: list[int]) -> Any:
    return data[rows] if isinstance(data, torch.Tensor) else tuple(t[rows] for t in data)


def job(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = case.make()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: int) -> None:
    """With torch.save."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "rng": torch.get_rng_state(), "position": position}, path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    kept = torch.load(path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["rng"])
    return int(kept["position"])


def save_distributed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: int) -> None:
    """With torch.distributed.checkpoint."""
    weights, moments = get_state_dict(model, optimizer)
    rest = {"rng": torch.get_rng_state(), "position": position}
    checkpoint.save({"model": weights, "optimizer": moments, **rest}, checkpoint_id=path)


def load_distributed(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "rng": torch.get_rng_state(), "position": 0}
    checkpoint.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    torch.set_rng_state(state["rng"])
    return int(state["position"])


WAYS = {"torch.save": (save, load), "distributed checkpoint": (save_distributed, load_distributed)}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["cnn with batchnorm", "transformer with dropout"])
def test_a_job_that_dies_inside_a_batch_goes_on_from_its_checkpoint_with_the_same_bits(
    name: str, way: str, tmp_path: Path
) -> None:
    """The checkpoint is plain PyTorch's: model, optimizer, random state and the position in the data."""
    keep, resume = WAYS[way]
    case = EXACT[name]
    data, parts = case.draw(6 * SIZE), []
    used: list[int] = []
    model, optimizer = job(case)
    plain_model, plain_optimizer = job(case)
    start = 0

    class Died(Exception):
        pass

    for life in range(2):
        if life:
            model, optimizer = job(case)
            start = resume(tmp_path / str(len(parts)), model, optimizer)
            assert start == len(parts)
        else:
            torch.manual_seed(11)
        rec = Recorder(model, optimizer, budget=64 * MIB)
        rec.elastic.memory.observe(SIZE, 20 * MIB)
        try:
            for i in range(start, 6):
                batch = pick(data, list(range(i * SIZE, (i + 1) * SIZE)))
                rec.parts.clear()
                loss_fn = case.loss_of(model)
                if not life and i == 3:
                    rec.elastic._most = 8  # so that it dies after microbatches that were done
                    calls = []

                    def dying(part: Any, calls: list[int] = calls, loss_fn: Any = loss_fn) -> torch.Tensor:
                        calls.append(1)
                        if len(calls) == 2:
                            raise Died
                        return loss_fn(part)

                    loss_fn = dying
                with rec.storm(i, 6 * MIB, 32 * MIB):
                    rec.elastic.backward(batch, loss_fn)
                optimizer.step()
                optimizer.zero_grad()
                used += range(i * SIZE, (i + 1) * SIZE)
                parts.append(list(rec.parts))
                keep(tmp_path / str(i + 1), model, optimizer, i + 1)
        except Died:
            assert life == 0
        rec.elastic.close()
    assert used == list(range(6 * SIZE)), "each sample once"
    torch.manual_seed(11)
    for i, sizes in enumerate(parts):
        plain(case, plain_model, pick(data, list(range(i * SIZE, (i + 1) * SIZE))), sizes)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
    for (key, a), b in zip(model.state_dict().items(), plain_model.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    same_optimizer(optimizer, plain_optimizer)
