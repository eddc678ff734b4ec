"""Memory by category, as a job reports it, beside what PyTorch's own profiler says of the same batch."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import Action, Category

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, attach, text_loss

pytestmark = pytest.mark.cpu


def peaks(profiler: Any) -> dict[Category | None, int]:
    """The most bytes of each of the profiler's categories at one time."""
    found = profiler._memory_profile()
    now: Counter[Category | None] = Counter()
    most: Counter[Category | None] = Counter()
    for _, action, (key, version), size in found.timeline:
        category = found._categories.get(key, version)
        if action in (Action.DESTROY, Action.INCREMENT_VERSION):
            now[category] -= size
        if action == Action.INCREMENT_VERSION:
            category = found._categories.get(key, version + 1)
        if action != Action.DESTROY:
            now[category] += size
        most[category] = max(most[category], now[category])
    return most


def test_categories_are_those_of_pytorchs_profiler() -> None:
    """Weights, gradients (the batch's and the microbatch's) and optimizer state to the byte; activations, which Lull
    looks at where backward begins, to a twentieth of the profiler's highest."""
    torch.manual_seed(1)
    model = Gpt(width=128, drop=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    elastic = attach(model, optimizer, budget=1024 * MIB)
    ids = torch.randint(0, 256, (16, 65))
    seen: dict[str, int] = {}
    look = elastic._look

    def looked(roots: Any) -> None:
        seen.update(elastic.bytes_by_category())
        look(roots)

    for _ in range(4):
        elastic.backward(ids, text_loss(model))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert elastic.stats.microbatch == len(ids)
    elastic._look = looked  # type: ignore[method-assign]
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        elastic.backward(ids, text_loss(model))
        optimizer.step()
    theirs = peaks(profiler)
    assert seen["parameters"] == theirs[Category.PARAMETER]
    assert seen["gradients"] == theirs[Category.GRADIENT]
    steps = 4 * len(list(model.parameters()))  # AdamW counts the steps of each parameter in a tensor of its own
    assert seen["optimizer"] == pytest.approx(theirs[Category.OPTIMIZER_STATE], abs=steps)
    activations = seen["slots"] + seen["inputs"] + seen["outside"]
    assert activations == pytest.approx(theirs[Category.ACTIVATION], rel=0.05)
    assert seen["invisible"] == 0
