"""Plain attributes of a block: a second run finds what the first found, and leaves them as they are now."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Recorder

pytestmark = pytest.mark.cpu


class Base(nn.Module):
    """A block with a weight, and blocks of it in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Counting(Base):
    """Its calls differ by a number that it changes itself."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return x + torch.sigmoid(self.feed(x) * self.calls)


class Lazy(Base):
    """It makes something in its first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.mask = torch.linspace(0, 1, 64, dtype=x.dtype)
        return x + torch.sigmoid(self.feed(x) * self.mask)


class Conditioned(Base):
    """It reads a tensor that is set before each call, with a gradient of its own (FiLM)."""

    condition: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(self.feed(x)) * self.condition


class Modal(Base):
    """It does something else while it evaluates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (torch.sigmoid(self.feed(x)) if self.training else torch.tanh(self.feed(x)))


class Net(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.condition = nn.Linear(64, 64)
        nn.init.zeros_(self.condition.weight)  # so that the first batch cannot tell two calls apart
        self.blocks = nn.ModuleList(block() for _ in range(4))

    def once(self, x: torch.Tensor, by: torch.Tensor, training: bool) -> torch.Tensor:
        for block in self.blocks:
            block.condition = self.condition(by)
            block.train(training)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two calls of each block; attributes are at the second's values when backward begins."""
        two = self.once(x, x, True), self.once(x, -3 * x, False)
        return (two[0] - two[1]).square().mean() + two[0].square().mean()


def emptied(rec: Recorder, model: nn.Module, x: torch.Tensor) -> None:
    """One backward pass all of whose blocks are run again."""

    def loss(x: torch.Tensor) -> torch.Tensor:
        found = model(x)
        table = rec.elastic._table
        if table is not None:
            assert [run.empty() for run in table.runs if run.name.startswith("blocks")] == [True] * 8
        return found

    before = rec.elastic.stats.recomputed
    rec.elastic.backward(x, loss)
    assert rec.elastic.stats.recomputed > before


@pytest.mark.parametrize("block", [Counting, Lazy, Conditioned, Modal])
def test_second_run_finds_what_the_first_found(block: type[nn.Module]) -> None:
    torch.manual_seed(2)
    model, x = Net(block).double(), torch.randn(16, 64, dtype=torch.float64)
    twin = copy.deepcopy(model)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=256 * MIB)
    rec.elastic.backward(x, model)  # the first batch measures
    rec.elastic.optimizer.step()
    rec.elastic.optimizer.zero_grad()
    twin.load_state_dict(model.state_dict())
    for ours, plain in zip(model.blocks, twin.blocks, strict=True):
        if block is Counting:
            plain.calls = ours.calls
    rec.parts.clear()
    for _ in range(2):
        emptied(rec, model, x)
        twin(x).backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.equal(p.grad, q.grad)
        for ours, plain in zip(model.blocks, twin.blocks, strict=True):
            assert vars(ours).keys() == vars(plain).keys(), "a second run leaves no attribute behind"
            assert getattr(ours, "calls", 0) == getattr(plain, "calls", 0), "nor is it counted as a call"
            assert ours.training == plain.training
    assert rec.parts == [16, 16]


class Edited(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.sigmoid(self.feed(x)) * self.scale


def test_attribute_edited_in_place_keeps_its_block_full() -> None:
    class Own(Edited):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.scale += 1
            return super().forward(x)

    model = nn.Sequential(Own(), Own())
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=256 * MIB)
    rec.elastic.backward(torch.randn(4, 64), lambda x: model(x).sum())
    checked: list[bool] = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        found = model(x).sum()
        assert rec.elastic._table is not None
        checked.extend(run.empty() for run in rec.elastic._table.runs)
        return found

    rec.elastic.backward(torch.randn(4, 64), loss)
    assert checked
    assert not any(checked)


def test_attribute_edited_after_its_block_was_emptied_is_refused_by_name() -> None:
    model = nn.Sequential(Edited(), Edited())
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=256 * MIB)
    rec.elastic.backward(torch.randn(4, 64), lambda x: model(x).sum())

    def loss(x: torch.Tensor) -> torch.Tensor:
        found = model(x).sum()
        assert rec.elastic._table is not None
        for run in rec.elastic._table.runs:
            run.empty()
        for block in model:
            block.scale.add_(1)
        return found

    with pytest.raises(lull.RuntimeRefusal, match=r"\(attribute scale\): .* edited in place"):
        rec.elastic.backward(torch.randn(4, 64), loss)
