"""Gradients that somebody keeps are theirs, as in plain PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB

pytestmark = pytest.mark.cpu


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


HOLDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda g: g,
    "view": lambda g: g.view(-1),
    "alias": lambda g: g.detach(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("holder", HOLDERS)
def test_gradient_that_somebody_keeps_stays_as_it_was_in_later_calls(holder: str, dtype: torch.dtype) -> None:
    model = net().to(dtype)
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    x, y = torch.randn(12, 8).to(dtype), torch.randn(12, 8).to(dtype)

    def loss(b: torch.Tensor) -> torch.Tensor:
        return model(b).float().square().mean()

    try:
        elastic.backward(x, loss)
        kept = [HOLDERS[holder](p.grad) for p in model.parameters() if p.grad is not None]
        was = [g.clone() for g in kept]
        for _ in range(2):
            model.zero_grad()
            elastic.backward(y, loss)
            assert len(kept) == 4
            assert all(torch.equal(g, w) for g, w in zip(kept, was, strict=True))
        assert not any(
            torch.equal(g.flatten(), p.grad.flatten()) for g, p in zip(kept, model.parameters(), strict=True)
        )
    finally:
        elastic.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_that_nobody_keeps_is_written_into_the_same_memory(dtype: torch.dtype) -> None:
    model = net().to(dtype)
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), budget=64 * MIB, socket="")
    x, seen = torch.randn(12, 8).to(dtype), []
    try:
        for _ in range(4):
            elastic.backward(x, lambda b: model(b).float().square().mean())
            seen.append([p.grad.data_ptr() for p in model.parameters() if p.grad is not None])
            elastic.optimizer.step()
            elastic.optimizer.zero_grad()
        assert len(seen[0]) == 4
        assert all(pointers == seen[0] for pointers in seen)
    finally:
        elastic.close()


def test_gradients_that_add_up_do_so_in_place_as_in_pytorch() -> None:
    model, x = net(), torch.randn(12, 8).double()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        elastic.backward(x, lambda b: model(b).square().mean())
        kept = [p.grad for p in model.parameters() if p.grad is not None]
        once = [g.clone() for g in kept]
        elastic.backward(x, lambda b: model(b).square().mean())
        assert all(p.grad is g for p, g in zip(model.parameters(), kept, strict=True))
        for g, single in zip(kept, once, strict=True):
            torch.testing.assert_close(g, 2 * single, rtol=1e-12, atol=1e-14)
    finally:
        elastic.close()
