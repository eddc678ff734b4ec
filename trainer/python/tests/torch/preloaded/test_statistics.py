"""Models that take statistics over samples never run on one alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import lull

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB

pytestmark = pytest.mark.cpu


def statistics() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)).double()


@pytest.mark.parametrize(
    ("size", "most", "parts"), [(12, 5, [5, 5, 2]), (11, 5, [5, 4, 2]), (5, 1, [2, 3]), (2, 1, [2])]
)
def test_model_with_statistics_over_samples_never_runs_on_one_alone(size: int, most: int, parts: list[int]) -> None:
    model, plain = statistics(), statistics()
    x, y = torch.randn(size, 8).double(), torch.randn(size, 4).double()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    elastic.memory.samples_within = lambda budget, left: min(most, left)  # type: ignore[method-assign]
    ran: list[int] = []
    elastic.stats.ran = lambda samples, took: ran.append(samples)  # type: ignore[method-assign]
    try:
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
    finally:
        elastic.close()
    assert ran == parts
    done = 0
    for n in parts:
        (mse_loss(plain(x[done : done + n]), y[done : done + n]) * (n / size)).backward()
        done += n
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-14)
    for a, b in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    assert elastic.min_budget > 0


def test_batch_of_one_sample_for_such_a_model_fails_as_in_pytorch() -> None:
    model = statistics()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            elastic.backward(torch.randn(1, 8).double(), lambda b: model(b).square().mean())
    finally:
        elastic.close()
