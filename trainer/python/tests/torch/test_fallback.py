"""Without lull.run: a warning with the measured rate, and the same results."""

from __future__ import annotations

import copy
import os
import re

import pytest
import torch
import torch.nn as nn

import lull
from lull._protocol import Ack, Budget
from lull._torch.cpu import MallocPool

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(os.environ.get("LULL_ARENA")), reason="the arena is in this process"),
]


def model_of(width: int = 256) -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4))
    )


def loss_of(model: nn.Module):  # type: ignore[no-untyped-def]
    return lambda x: model(x).square().mean()


def test_attach_warns_with_the_measured_rate() -> None:
    model = model_of()
    with pytest.warns(RuntimeWarning, match=r"no native arena.*GiB/s.*python -m lull\.run") as seen:
        elastic = lull.attach(model, torch.optim.AdamW(model.parameters()), socket="")
    rate = re.search(r"at ([0-9.]+) GiB/s", str(seen[0].message))
    assert rate is not None
    assert float(rate[1]) > 0
    assert isinstance(elastic.device.pool, MallocPool)
    elastic.close()


def test_order_frees_memory_and_gradients_stay_exact() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = model_of()
    plain = copy.deepcopy(model)
    with pytest.warns(RuntimeWarning, match="no native arena"):
        elastic = lull.attach(model, torch.optim.AdamW(model.parameters()), socket="", budget="512MiB")
    x = torch.randn(4096, 256)
    elastic.memory.observe(4096, 64 << 20)
    elastic.backward(x, loss_of(model))
    elastic.optimizer.zero_grad()
    acks: list[Ack] = []
    sizes: list[int] = []
    ran = elastic.stats.ran
    elastic.stats.ran = lambda n, took: (sizes.append(n), ran(n, took))[1]  # type: ignore[method-assign]

    def loss(x: torch.Tensor) -> torch.Tensor:
        out = loss_of(model)(x)
        if not acks:
            elastic.apply(Budget(1, elastic.device.pool.resident() // 2), acks.append)
        return out

    elastic.backward(x, loss)
    assert acks[0].how in ("drop", "cached")
    assert acks[0].freed_us > 0
    start = 0
    for n in sizes:
        (loss_of(plain)(x[start : start + n]) * (n / 4096)).backward()
        start += n
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b.grad)
    elastic.close()
