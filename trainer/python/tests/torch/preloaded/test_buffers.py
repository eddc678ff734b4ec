"""What a discarded or repeated forward pass changes is put back: buffers of every kind, and every random state."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Recorder, attach, pair_loss, plain_step, twin

pytestmark = pytest.mark.cpu


class Counting(nn.Module):
    """Assigns one counter, adds to another in place, and multiplies with both."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("assigned", torch.ones(()))
        self.register_buffer("added", torch.ones(()))
        self.register_buffer("average", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.assigned = self.assigned + 1
        self.added.add_(1)
        mean = x.detach().mean()
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        return self.down(torch.tanh(self.up(x) + self.average) / self.assigned) / self.added.clone()


class Dicing(nn.Module):
    """Draws its mask from Python's and NumPy's global generators."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.up(x))
        mask = torch.tensor([float(random.random() > 0.3) for _ in range(64)]).repeat(y.shape[1] // 64)
        scale = torch.from_numpy(np.random.rand(y.shape[1]).astype("float32"))
        return self.down(y * mask * scale)


class Root(nn.Module):
    """Buffers of its own, beside the blocks."""

    def __init__(self, block: type[nn.Module], depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(256, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        self.seen[1] += float(x.shape[0])
        for block in self.blocks:
            x = x + block(x)
        return self.head(x) / self.calls


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def draws() -> tuple[Any, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def cut(pair: Any, i: int, j: int) -> Any:
    return tuple(t[i:j] for t in pair)


def same_buffers(a: nn.Module, b: nn.Module) -> None:
    theirs = dict(b.named_buffers())
    ours = dict(a.named_buffers())
    assert ours.keys() == theirs.keys()
    for name, buffer in ours.items():
        assert torch.equal(buffer, theirs[name]), name


@pytest.mark.parametrize("block", [Counting, Dicing])
def test_storm_leaves_no_trace_in_buffers_and_generators(block: type[nn.Module]) -> None:
    seed(3)
    model = Root(block)
    plain = twin(model)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.01), budget=64 * MIB)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.01)
    rec.elastic.memory.observe(512, 24 * MIB)
    for i in rec.batches(5):
        batch = (torch.randn(512, 256), torch.randint(0, 8, (512,)))
        rec.parts.clear()
        seed(100 + i)
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(batch, pair_loss(model))
        after = draws()
        seed(100 + i)
        plain_step(plain, batch, pair_loss(plain), rec.parts, cut)
        assert after == draws()
        same_buffers(model, plain)
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad), f"gradient of {name} in batch {i}"  # type: ignore[arg-type]
        for optimizer in (rec.elastic.optimizer, theirs):
            optimizer.step()
            optimizer.zero_grad()
    rec.elastic.close()


def in_backward(elastic: lull.Elastic, act: Callable[[], None]) -> None:
    """Calls act once, at the first safe point of a backward pass."""
    point, done = elastic.orders.safe_point, []

    def hooked() -> None:
        if not done and elastic._table is not None and elastic.hooks.table is None:
            done.append(True)
            act()
        point()

    elastic.orders.safe_point = hooked  # type: ignore[method-assign]


def want_discard(elastic: lull.Elastic) -> None:
    elastic.orders.ordered = elastic.orders._discard = elastic.orders._flag = True


@pytest.mark.parametrize("block", [Counting, Dicing])
def test_forced_discard_and_repeated_blocks_leave_no_trace(block: type[nn.Module]) -> None:
    seed(4)
    model = Root(block)
    plain = twin(model)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.01), budget=256 * MIB)
    elastic = rec.elastic
    elastic.memory.observe(512, 40 * MIB)
    batch = (torch.randn(512, 256), torch.randint(0, 8, (512,)))

    def drop() -> None:
        assert elastic._table is not None
        assert all(run.empty() for run in elastic._table.runs[:4])

    for act in (drop, lambda: want_discard(elastic)):
        seed(9)
        rec.parts.clear()
        in_backward(elastic, act)
        elastic.backward(batch, pair_loss(model))
        after = draws()
        seed(9)
        plain_step(plain, batch, pair_loss(plain), rec.parts, cut)
        assert after == draws()
        same_buffers(model, plain)
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]
        elastic.optimizer.zero_grad()
        plain.zero_grad()
    assert elastic.stats.discards == 1
    assert elastic.stats.recomputed >= 4
    elastic.close()


def test_dry_step_finds_what_moves_and_leaves_it_as_it_was() -> None:
    model = Root(Counting, depth=2)
    before = dict(model.named_buffers())
    values = {name: b.clone() for name, b in before.items()}
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    elastic._measure((torch.randn(1, 256), torch.zeros(1, dtype=torch.long)), pair_loss(model))
    assert {name: id(b) for name, b in model.named_buffers()} == {name: id(b) for name, b in before.items()}
    assert all(torch.equal(b, values[name]) for name, b in model.named_buffers())
    assert {(id(model), "calls"), (id(model), "seen")} <= elastic.movers
    assert {(id(model.blocks[0]), name) for name in ("assigned", "added", "average")} <= elastic.movers
    elastic.close()


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.register_buffer("mask", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(64)
        return self.w(x * self.mask).tanh()


def test_what_a_model_makes_once_is_made_in_the_dry_step() -> None:
    model = nn.Sequential(Caching(), Caching())
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    elastic._measure(torch.randn(1, 64), lambda x: model(x).sum())
    masks = [block.mask for block in model]
    assert all(mask is not None for mask in masks)
    assert elastic.movers == set()
    elastic.backward(torch.randn(4, 64), lambda x: model(x).sum())
    assert all(a is b.mask for a, b in zip(masks, model, strict=True))
    elastic.close()


class Late(nn.Module):
    """Changes its buffer only once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.register_buffer("count", torch.ones(()))
        self.on = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.on:
            self.count.add_(1)
        return self.w(x).tanh() / float(self.count)


def test_buffer_that_moves_late_is_logged_then_put_back(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(Late(), Late())
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(4, 64)
    elastic.backward(x, lambda x: model(x).sum())
    for block in model:
        block.on = True
    counts = []
    for _ in range(2):
        in_backward(elastic, lambda: want_discard(elastic))
        elastic.backward(x, lambda x: model(x).sum())
        counts.append([float(block.count) for block in model])
    parts_after_first = counts[1][0] - counts[0][0]
    assert parts_after_first == 1
    assert elastic.stats.discards == 2
    assert caplog.text.count("changed for the first time in a microbatch that is undone") == 1
    elastic.close()


def test_block_whose_old_buffer_is_unknown_is_not_run_again() -> None:
    model = nn.Sequential(Late(), Late())
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    x = torch.randn(4, 64)
    elastic.backward(x, lambda x: model(x).sum())
    elastic.optimizer.zero_grad()
    for block in model:
        block.on = True

    def forget() -> None:
        assert elastic._table is not None
        assert not any(run.empty() for run in elastic._table.runs)
        for run in elastic._table.runs:
            for slot in run.live():
                slot.tensor = None

    in_backward(elastic, forget)
    with pytest.raises(lull.RuntimeRefusal, match=r"its buffer count changed for the first time.*not kept"):
        elastic.backward(x, lambda x: model(x).sum())
    elastic.close()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("wanted", [True, False])
def test_leaving_is_never_taken_for_a_discard(kind: type[BaseException], wanted: bool) -> None:
    model = Root(Counting, depth=2)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    batch = (torch.randn(8, 256), torch.zeros(8, dtype=torch.long))
    elastic.backward(batch, pair_loss(model))
    elastic.optimizer.zero_grad()
    calls = float(model.calls)

    def leave(pair: Any) -> torch.Tensor:
        pair_loss(model)(pair)
        if wanted:
            elastic.orders._want_discard()
        raise kind("mine")

    with pytest.raises(kind, match="mine"):
        elastic.backward(batch, leave)
    assert float(model.calls) == calls
    assert not elastic.orders.discarding
    assert all(p.grad is None for p in model.parameters())
    elastic.backward(batch, pair_loss(model))
    assert float(model.calls) > calls
    elastic.close()
