"""Gradients and parameters are bitwise those of the same partition trained undisturbed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).parent))
from cases import EXACT, Case
from models import MIB, Recorder, twin

pytestmark = pytest.mark.cpu


def cut(batch: Any, start: int, stop: int) -> Any:
    return batch[start:stop] if isinstance(batch, torch.Tensor) else tuple(t[start:stop] for t in batch)


def plain(case: Case, model: nn.Module, batch: Any, parts: list[int]) -> None:
    """The same partition without Lull; 16-bit gradients are added up in float32."""
    loss_fn = case.loss_of(model)
    totals: dict[nn.Parameter, torch.Tensor] = {}
    start = 0
    for count, share in zip(parts, case.shares(batch, parts), strict=True):
        if case.narrow:
            model.zero_grad()
        loss = loss_fn(cut(batch, start, start + count))
        (loss if share == 1.0 else loss * share).backward()
        start += count
        if case.narrow:
            for p in model.parameters():
                if p.grad is not None:
                    totals[p] = totals.get(p, torch.zeros(p.shape)) + p.grad.float()
    for p, total in totals.items():
        p.grad = total.to(p.dtype)


def same_gradients(a: nn.Module, b: nn.Module, when: str) -> None:
    for (name, ours), theirs in zip(a.named_parameters(), b.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad), f"gradient of {name} {when}"
    for (name, buffer), other in zip(a.named_buffers(), b.buffers(), strict=True):
        assert torch.equal(buffer, other), f"{name} {when}"


def same_optimizer(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> None:
    ours, theirs = a.state_dict()["state"], b.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for key, values in ours.items():
        for name, value in values.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(theirs[key][name])), f"{name} of {key}"


@pytest.mark.parametrize("name", EXACT)
def test_storm_of_orders_changes_no_bit(name: str) -> None:
    """Gradients, buffers and random state of each batch; clipped norms, parameters and optimizer state."""
    case = EXACT[name]
    torch.manual_seed(7)
    model = case.make()
    other = twin(model)
    ours, theirs = (torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3) for m in (model, other))
    rec = Recorder(model, ours, budget=64 * MIB)
    rec.elastic.memory.observe(case.size, 24 * MIB)  # large microbatches from the start, so that orders bite

    for i in rec.batches(6):
        batch = case.draw(case.size)
        torch.manual_seed(100 + i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(batch, case.loss_of(model), **case.call(batch))
        after = torch.get_rng_state()
        torch.manual_seed(100 + i)
        plain(case, other, batch, rec.parts)
        assert torch.equal(after, torch.get_rng_state()), "random state"
        same_gradients(model, other, f"in batch {i}")
        norms = [torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1) for m in (model, other)]
        assert torch.equal(*norms)
        for opt in (ours, theirs):
            opt.step()
            opt.zero_grad()
    for (key, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), f"{key} after the last step"
    same_optimizer(ours, theirs)
    stats = rec.elastic.stats
    print(name, stats.recomputed, stats.dropped, stats.discards, rec.elastic.orders.hows)
    rec.elastic.close()
