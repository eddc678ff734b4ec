"""How far the memory model is off, in the mean, after 20 microbatches: on what SIRIUS measured, and on models here."""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import pytest
import torch

from lull._torch.model import Model

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXACT, Case
from models import MIB, attach

pytestmark = pytest.mark.cpu

BAR = 0.03
LEARN, JUDGED = 20, 20
"""Microbatches that are learned from before any is judged, and then judged."""

SIRIUS = {
    "qwen": {1: 8.48, 2: 8.81, 4: 9.45, 8: 11.18, 16: 15.79, 32: 24.99, 64: 43.55, 96: 62.24},
    "resnet152": {8: 1.50, 32: 3.75, 128: 11.75, 150: 13.50},
    "resnet152, PyTorch's allocator": {8: 2.64, 32: 4.97, 128: 13.75, 150: 15.68},
    "gpt2": {1: 3.00, 4: 4.25, 8: 6.50, 12: 8.75, 16: 11.00, 20: 12.25},
}
"""GiB by samples, as the source of SIRIUS (USENIX ATC 2025) has them in comments: measured on GPUs, not here. Its own
constants are 12.2 % off in the mean on qwen."""


def off(points: dict[int, float], seed: int) -> list[float]:
    """Relative errors of predictions for drawn sizes, each made before its size is learned from."""
    draw, model, found = random.Random(seed), Model(), []
    for turn in range(LEARN + JUDGED):
        samples = draw.choice(list(points))
        peak = int(points[samples] * (1 << 30))
        if turn >= LEARN:
            found.append(abs(model.bytes(samples) - peak) / peak)
        model.observe(samples, peak)
    return found


@pytest.mark.parametrize("name", SIRIUS)
def test_mean_error_on_what_sirius_measured_is_within_three_percent(name: str) -> None:
    assert statistics.mean(error for seed in range(100) for error in off(SIRIUS[name], seed)) <= BAR


@pytest.mark.parametrize("first", [150, 8])
def test_smallest_microbatch_seen_is_the_floor_whichever_came_first(first: int) -> None:
    model = Model()
    model.observe(first, int(SIRIUS["resnet152"][first] * (1 << 30)))
    for samples in (32, 8, 128, 150):
        model.observe(samples, int(SIRIUS["resnet152"][samples] * (1 << 30)))
    wire = model.wire()
    assert wire is not None
    assert wire.floor == 1.5 * (1 << 30)


@pytest.mark.parametrize("name", EXACT)
def test_mean_error_on_models_that_are_trained_here_is_within_three_percent(name: str) -> None:
    case: Case = EXACT[name]
    torch.manual_seed(3)
    model = case.make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    elastic = attach(model, optimizer, budget=2048 * MIB, partition="trusted")
    draw, errors, seen = random.Random(1), list[float](), elastic.memory.observe
    least = 4  # in fewer samples of models as small as these, most tensors are too small for the arena to count

    def judge(samples: int, peak: int) -> None:
        errors.append(abs(elastic.memory.bytes(samples) - peak) / peak)
        seen(samples, peak)

    def train(samples: int) -> None:
        elastic._most = samples
        batch = case.draw(samples)
        elastic.backward(batch, case.loss_of(model), **case.call(batch))
        optimizer.zero_grad()

    train(least)  # the questions and the dry step
    elastic.memory.observe = judge  # type: ignore[method-assign]
    while len(errors) < LEARN + JUDGED:
        train(draw.randint(least, case.size))
    found = statistics.mean(errors[LEARN : LEARN + JUDGED])
    print(f"{name}: {found:.2%}")
    assert found <= BAR
