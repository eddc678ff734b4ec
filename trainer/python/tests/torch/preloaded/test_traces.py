"""What attach, the dry step and the batch leave behind: nothing, or exactly what PyTorch would."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lull._torch.batch import batch_size, part
from lull._torch.model import Model

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Cnn, Gpt, Mlp, Recorder, attach, pair_loss, plain_step, text_loss

pytestmark = pytest.mark.cpu


def state_of(module: nn.Module) -> list[torch.Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("kind", ["adam", "momentum", "adam with state"])
def test_dry_step_leaves_no_trace(kind: str) -> None:
    torch.manual_seed(5)
    model = Cnn()
    params = list(model.parameters())
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(params, lr=0.1, momentum=0.9) if kind == "momentum" else torch.optim.AdamW(params)
    )
    batch = (torch.randn(4, 3, 16, 16), torch.randint(0, 8, (4,)))
    if kind == "adam with state":
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
    before, rng, kept = state_of(model), torch.get_rng_state(), copy.deepcopy(optimizer.state_dict())
    elastic = attach(model, optimizer)
    elastic._measure(part(batch, 0, 1, 4), pair_loss(model))
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(model), strict=True))
    assert torch.equal(rng, torch.get_rng_state())
    after = optimizer.state_dict()
    assert after["param_groups"] == kept["param_groups"]
    assert after["state"].keys() == kept["state"].keys()
    for key, values in kept["state"].items():
        assert all(torch.equal(v, after["state"][key][name]) for name, v in values.items())
    assert all(p.grad is None for p in params)
    assert elastic.floor is not None
    assert elastic.floor.state > 0
    elastic.close()


def test_floor_covers_what_training_takes_outside_the_arena() -> None:
    torch.manual_seed(6)
    model = Gpt(width=256)
    optimizer = torch.optim.AdamW(model.parameters())
    elastic = attach(model, optimizer, budget=200 * MIB)
    ids = torch.randint(0, 256, (16, 65))
    worst = 0
    for _ in range(6):
        elastic.backward(ids, text_loss(model))
        optimizer.step()
        worst = max(worst, elastic.bytes_by_category()["residual"])
        optimizer.zero_grad()
    assert elastic.floor is not None
    owned = sum(elastic.bytes_by_category()[k] for k in ("parameters", "gradients", "optimizer"))
    assert elastic.floor.bytes >= owned
    assert worst == 0
    elastic.close()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_either_way_trains_as_plain_pytorch(set_to_none: bool) -> None:
    torch.manual_seed(8)
    model = Mlp(drop=0.0)
    plain = copy.deepcopy(model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain))
    rec = Recorder(model, ours)
    for i in range(4):
        rec.parts.clear()
        batch = (torch.randn(16, 256), torch.randint(0, 8, (16,)))
        torch.manual_seed(i)
        rec.elastic.backward(batch, pair_loss(model))
        ours.step()
        ours.zero_grad(set_to_none=set_to_none)
        plain_step(plain, batch, pair_loss(plain), rec.parts, lambda pair, i, j: tuple(t[i:j] for t in pair))
        theirs.step()
        theirs.zero_grad(set_to_none=set_to_none)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)
    rec.elastic.close()


def test_gradients_add_up_over_calls_without_zero_grad() -> None:
    torch.manual_seed(9)
    model = Mlp(drop=0.0)
    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batch = (torch.randn(16, 256), torch.randint(0, 8, (16,)))
    elastic.backward(batch, pair_loss(model))
    first = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    elastic.backward(batch, pair_loss(model))
    for p, g in zip(model.parameters(), first, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 2 * g, rtol=1e-4, atol=1e-6)
    elastic.close()


def test_parameter_that_no_loss_reached_keeps_no_gradient() -> None:
    model = Mlp()
    model.unused = nn.Linear(3, 3)
    elastic = attach(model, torch.optim.AdamW(model.parameters()))
    elastic.backward((torch.randn(4, 256), torch.randint(0, 8, (4,))), pair_loss(model))
    assert model.unused.weight.grad is None
    assert model.head.weight.grad is not None
    elastic.close()


def test_token_weights_equal_one_pass_over_all_tokens() -> None:
    torch.manual_seed(10)
    model = Gpt(drop=0.0).double()
    plain = copy.deepcopy(model)
    ids = torch.randint(0, 256, (12, 65))
    ids[:, 40:] = torch.where(torch.rand(12, 25) < 0.7, 0, ids[:, 40:])

    def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)

    elastic = attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    elastic.memory._largest = 1
    got = elastic.backward(ids, lambda i: loss(model, i), weights=(ids[:, 1:] != 0).sum(1))
    want = loss(plain, ids)
    want.backward()
    assert abs(float(got) - float(want.detach())) < 1e-12
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)
    elastic.close()


def test_model_can_be_copied_and_pickled_between_batches() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.AdamW(model.parameters()))
    elastic.backward((torch.randn(4, 256), torch.randint(0, 8, (4,))), pair_loss(model))
    twin = copy.deepcopy(model.blocks)
    again = pickle.loads(pickle.dumps(model.blocks.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), again.values(), strict=True))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    elastic.close()


def test_no_block_stays_in_the_arena_after_a_batch() -> None:
    model = Gpt()
    elastic = attach(model, torch.optim.AdamW(model.parameters()))
    for _ in range(3):
        loss = elastic.backward(torch.randint(0, 256, (8, 65)), text_loss(model))
        assert elastic.device.pool.counters()["blocks"] == 0
    assert not loss.requires_grad
    elastic.close()


@given(st.integers(1, 40), st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=50)
def test_parts_put_together_are_the_batch(size: int, step: int) -> None:
    batch = {"a": torch.arange(size * 2).view(size, 2), "b": [torch.arange(size), 7], "c": torch.tensor(3)}
    assert batch_size(batch) == size
    cuts = [part(batch, i, min(i + step, size), size) for i in range(0, size, step)]
    assert torch.equal(torch.cat([c["a"] for c in cuts]), batch["a"])
    assert torch.equal(torch.cat([c["b"][0] for c in cuts]), batch["b"][0])
    assert all(c["b"][1] == 7 and c["c"] == 3 for c in cuts)


@given(st.floats(0, 1e8), st.floats(1e3, 1e8), st.lists(st.integers(1, 64), min_size=2, max_size=12))
@settings(deadline=None, max_examples=100)
def test_memory_model_learns_a_line_and_stays_under_the_budget(base: float, slope: float, sizes: list[int]) -> None:
    model = Model()
    for b in sizes:
        model.observe(b, int(base + slope * b))
    budget = int(base + slope * 100)
    fit = model.samples_within(budget, 1000)
    assert 1 <= fit <= 4 * max(sizes)
    if len(set(sizes)) > 1:
        assert fit == 1 or base + slope * fit <= budget * 1.001 + 1


def test_microbatches_take_what_fits_now() -> None:
    model = Mlp()
    elastic = attach(model, torch.optim.AdamW(model.parameters()), budget=100 * MIB)
    for samples in (10, 20):
        elastic.memory.observe(samples, samples * 10 * MIB)
    assert [elastic._next_size(left) for left in (25, 15, 5)] == [10, 10, 5]
    elastic._most = 3
    assert elastic._next_size(25) == 3
    elastic.close()
