"""A block that runs again gives what its first run gave: asked in the first batch, refused where it does not."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn as nn

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import attach

pytestmark = pytest.mark.cpu


class Wide(nn.Module):
    """Blocks in a row."""

    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


class Exp(nn.Module):
    """Saves its own output, which is the next block's input."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp(self.w(x).tanh())


class Counting(nn.Module):
    """Another function in each call; it counts where Lull does not look."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.calls = [0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls[0] += 1
        return torch.tanh(self.w(x) * (1 + 0.1 * self.calls[0])).sigmoid()


class Drawing(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.dice = random.Random(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.w(x) * self.dice.random()).sigmoid()


@pytest.mark.parametrize("make", [lambda: Wide(Counting), lambda: Wide(Drawing)])
def test_block_whose_second_run_has_other_values_is_refused_before_anything_is_trained(
    make: Callable[[], nn.Module],
) -> None:
    model, x = make(), torch.randn(512, 64)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    state = torch.get_rng_state()
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"block blocks\.0: run again it saved other values in tensor \d \(torch\.float32 \(1, 64\)\), want the "
        r"same: the block is not deterministic; .* name blocks= without it, or blocks=\[\]; the microbatch is undone",
    ):
        elastic.backward(x, model)
    assert elastic.floor is None, "nothing was granted"
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert elastic.device.pool.in_use() == 0
    elastic.close()


@pytest.mark.parametrize("kept", [0, 2])
def test_block_that_is_left_out_of_blocks_may_be_what_it_likes(kept: int) -> None:
    torch.manual_seed(1)
    model = Wide(Exp)
    model.blocks[1] = Counting()
    model.blocks.append(Counting())
    twin = copy.deepcopy(model)
    blocks = [model.blocks[0], model.blocks[2]][:kept]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elastic = attach(copy.deepcopy(model), optimizer, partition="trusted")
    with pytest.raises(lull.RuntimeRefusal, match="not deterministic"):
        elastic.backward(torch.randn(4, 64), elastic.model)
    elastic.close()
    if kept:
        model.blocks[1], model.blocks[3] = Exp(), Exp()  # of the type of those that are named
        twin = copy.deepcopy(model)
    elastic = attach(model, optimizer, partition="trusted", blocks=blocks)
    assert [s.name for s in elastic.segments] == ["blocks.0", "blocks.2"][:kept]
    x = torch.randn(1, 64)
    for _ in range(2):
        model.zero_grad()
        for block in [*model.blocks, *twin.blocks]:
            block.calls = [0]
        elastic.backward(x, model)
    twin(x).backward()
    if kept:
        assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    elastic.close()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.LSTM(64, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w(x)[0]


def test_kernels_with_workspaces_are_deterministic() -> None:
    model = Wide(Recurrent)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    for length in (3, 33):
        elastic.floor = None
        elastic.backward(torch.randn(16, length, 64), model)
    elastic.close()


class Hoarding(nn.Module):
    """Keeps an auxiliary loss in a list, which a second run adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(64, 64)
        self.losses: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.w(x))
        self.losses.append(y.square().mean())
        return x + y.sigmoid()


def test_tensor_of_a_second_run_in_a_loss_is_refused() -> None:
    model = Wide(Hoarding)

    def loss(x: torch.Tensor) -> torch.Tensor:
        total = model(x)
        for block in model.blocks:
            while block.losses:
                total = total + block.losses.pop()
        return total

    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), partition="trusted")
    with pytest.raises(
        lull.RuntimeRefusal,
        match=r"block blocks\.\d: a tensor of its second run is part of a loss, want only what its first run made: .*"
        r"overwrite them in each call; the microbatch is undone",
    ):
        elastic.backward(torch.randn(16, 64), loss)
    assert all(p.grad is None for p in model.parameters())
    elastic.close()
