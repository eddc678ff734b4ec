"""Gradients and parameters are bitwise those of the same partition trained undisturbed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, CheckpointedBlock, Cnn, Gpt, Mlp, Recorder, pair_loss, plain_step, text_loss, twin

pytestmark = pytest.mark.cpu

Make = Callable[[], nn.Module]


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 3, 32, 32), torch.randint(0, 8, (n,))


def vectors(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 256), torch.randint(0, 8, (n,))


def texts(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 65))


def frozen() -> nn.Module:
    model = Gpt()
    for p in model.blocks[1].parameters():
        p.requires_grad_(False)
    model.tokens.weight.requires_grad_(False)
    return model


def cast_loss(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    inner = text_loss(model)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return inner(ids)

    return loss


CASES: dict[str, tuple[Make, Callable[[int], Any], Any, int]] = {
    "mlp with dropout and in-place relu": (Mlp, vectors, pair_loss, 512),
    "cnn with batchnorm": (Cnn, images, pair_loss, 32),
    "transformer with dropout": (Gpt, texts, text_loss, 32),
    "tied weights": (lambda: Gpt(tied=True), texts, text_loss, 32),
    "frozen layers": (frozen, texts, text_loss, 32),
    "autocast bf16": (Gpt, texts, cast_loss, 32),
    "bf16 parameters": (lambda: Gpt().bfloat16(), texts, text_loss, 32),
    "user checkpointing": (lambda: Gpt(block=CheckpointedBlock), texts, text_loss, 32),
    "float64": (lambda: Gpt(drop=0.2).double(), texts, text_loss, 32),
}


@pytest.mark.parametrize("case", CASES)
def test_storm_of_orders_changes_no_bit(case: str) -> None:
    make, draw, loss_of, size = CASES[case]
    torch.manual_seed(7)
    model = make()
    plain = twin(model)
    rec = Recorder(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05), budget=64 * MIB)
    plain_opt = torch.optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.05)
    rec.elastic.memory.observe(size, 24 * MIB)  # large microbatches from the start, so that orders bite
    batches = [draw(size) for _ in range(6)]
    low = case == "bf16 parameters"

    for i, batch in enumerate(batches):
        torch.manual_seed(100 + i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 48 * MIB):
            rec.elastic.backward(batch, loss_of(model))
        after = torch.get_rng_state()
        torch.manual_seed(100 + i)
        if low:
            plain_low_step(plain, batch, loss_of(plain), rec.parts)
        else:
            plain_step(plain, batch, loss_of(plain), rec.parts, cut)
        assert torch.equal(after, torch.get_rng_state()), "random state"
        for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), name
            assert a.grad is None or torch.equal(a.grad, b.grad), f"gradient of {name} in batch {i}"
        for (name, a), b in zip(model.named_buffers(), plain.buffers(), strict=True):
            assert torch.equal(a, b), name
        for opt in (rec.elastic.optimizer, plain_opt):
            opt.step()
            opt.zero_grad()
    stats = rec.elastic.stats
    print(case, stats.recomputed, stats.dropped, stats.discards, rec.elastic.orders.hows)
    assert stats.dropped + stats.discards > 0, "the storm never bit"
    rec.elastic.close()


def cut(batch: Any, start: int, stop: int) -> Any:
    return batch[start:stop] if isinstance(batch, torch.Tensor) else tuple(t[start:stop] for t in batch)


def plain_low_step(model: nn.Module, batch: Any, loss_fn: Any, parts: list[int]) -> None:
    """Each microbatch's bf16 gradients, summed in float32."""
    totals: dict[nn.Parameter, torch.Tensor] = {}
    start, size = 0, sum(parts)
    for count in parts:
        model.zero_grad()
        loss = loss_fn(cut(batch, start, start + count))
        (loss if count == size else loss * (count / size)).backward()
        start += count
        for p in model.parameters():
            if p.grad is not None:
                totals[p] = totals.get(p, torch.zeros(p.shape)) + p.grad.float()
    for p, total in totals.items():
        p.grad = total.to(p.dtype)


@pytest.mark.parametrize("parts", [1, 4])
def test_equal_to_one_pass_in_float64(parts: int) -> None:
    torch.manual_seed(3)
    model = Gpt(drop=0.0).double()
    plain = twin(model)
    rec = Recorder(model, torch.optim.AdamW(model.parameters()), budget=256 * MIB)
    rec.elastic.memory.observe(32 // parts, 200 * MIB)
    batch = texts(32)
    loss = rec.elastic.backward(batch, text_loss(model))
    one = text_loss(plain)(batch)
    one.backward()
    assert abs(float(loss) - float(one.detach())) < 1e-12
    for (name, a), b in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert a.grad is not None, name
        torch.testing.assert_close(a.grad, b[1].grad, rtol=1e-11, atol=1e-12)
    rec.elastic.close()
