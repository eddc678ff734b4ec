"""What users do beside the plain loop: trained exactly, or refused before anything is trained."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import lull
from lull._errors import RuntimeRefusal
from lull._floor import Answer

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB

pytestmark = pytest.mark.cpu


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def test_parameter_that_only_the_optimizer_knows_gets_its_gradient_once() -> None:
    model, temperature = net(), nn.Parameter(torch.ones(1, dtype=torch.float64))
    x, y = torch.randn(12, 8).double(), torch.randn(12, 4).double()
    mse_loss(model(x) * temperature, y).backward()
    want = temperature.grad
    temperature.grad = None
    elastic = lull.attach(model, torch.optim.SGD([*model.parameters(), temperature], 0.1), budget=64 * MIB, socket="")
    try:
        model.zero_grad()
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]) * temperature, b[1]))
        assert want is not None
        torch.testing.assert_close(temperature.grad, want, rtol=1e-12, atol=1e-14)
    finally:
        elastic.close()


def test_parameter_unfrozen_after_attach_is_undone_with_its_microbatch() -> None:
    model = net()
    model[0].requires_grad_(False)
    x, y = torch.randn(12, 8).double(), torch.randn(12, 4).double()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
        model.zero_grad()
        model[0].requires_grad_(True)
        failed: list[bool] = []

        def once_short_of_memory(b: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            loss = mse_loss(model(b[0]), b[1])
            if not failed:
                failed.append(True)
                loss.backward()
                raise MemoryError
            return loss

        elastic.backward((x, y), once_short_of_memory)
        got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    finally:
        elastic.close()
    model.zero_grad(set_to_none=True)
    mse_loss(model(x), y).backward()
    assert len(got) == 4
    for grad, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-12, atol=1e-14)


def test_loss_that_edits_its_batch_is_refused_and_the_batch_is_as_it_was() -> None:
    model, x = net(), torch.randn(6, 8).double()
    before = x.clone()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        with pytest.raises(RuntimeRefusal, match="edits its batch in place"):
            elastic.backward(x, lambda b: model(b.mul_(2)).square().mean())
        assert torch.equal(x, before)
    finally:
        elastic.close()


def test_gradient_of_the_batch_itself_is_that_of_one_pass() -> None:
    model, x = net(), torch.randn(6, 8).double().requires_grad_()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        elastic.backward(x, lambda b: model(b).square().mean())
    finally:
        elastic.close()
    twin = x.detach().clone().requires_grad_()
    model(twin).square().mean().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-12, atol=1e-14)


def test_second_thread_is_refused_while_one_trains() -> None:
    model, x = net(), torch.randn(6, 8).double()
    elastic = lull.attach(
        model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="", partition="trusted"
    )
    refused: list[str] = []

    def other() -> None:
        try:
            elastic.backward(x, lambda b: model(b).square().mean())
        except RuntimeRefusal as error:
            refused.append(str(error))

    def loss(b: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return model(b).square().mean()

    try:
        elastic.backward(x, loss)
        assert refused
        assert all("one at a time" in text for text in refused)
    finally:
        elastic.close()


def test_parameter_is_unfrozen_only_after_its_floor_was_asked_for() -> None:
    model = net()
    model[0].requires_grad_(False)
    x, y = torch.randn(12, 8).double(), torch.randn(12, 4).double()
    elastic = lull.attach(model, torch.optim.Adam(model.parameters(), 0.1), budget=64 * MIB, socket="")
    asked: list[tuple[int, int]] = []

    class Agent:
        refused = ""
        connected = True

        def request_floor(self, bytes: int, timeout: float) -> Answer:
            asked.append((bytes, len(elastic._gradients.tensors())))
            return Answer.GRANTED if len(asked) > 1 else Answer.REFUSED

        def close(self) -> None: ...

    try:
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
        assert elastic.floor is not None
        floor = elastic.floor.bytes
        elastic.agent = Agent()
        elastic.orders.epoch = 1
        model[0].requires_grad_(True)
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
    finally:
        elastic.close()
    fresh = (8 * 16 + 16) * 8
    buffers, state = 2 * fresh, 2 * fresh
    first = [ask for ask in asked if ask[1] == 4]  # before there were buffers for the new ones
    assert len(first) == 2
    assert all(floor + buffers + state * 0.9 <= bytes <= floor + buffers + state * 1.2 + 64 for bytes, _ in first)


def test_microbatch_of_weight_zero_counts_for_nothing() -> None:
    model = net()
    x, y = torch.randn(12, 8).double(), torch.randn(12, 4).double()
    weights = torch.tensor([1.0] * 4 + [0.0] * 4 + [1.0] * 4)
    x[4:8] = float("nan")

    def masked_mean(b: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keep = b[2] > 0
        return mse_loss(model(b[0][keep]), b[1][keep])  # 0/0 where nothing is kept

    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    elastic._next_size = lambda left: 4  # type: ignore[method-assign]
    try:
        loss = elastic.backward((x, y, weights), masked_mean, weights=weights)
        got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    finally:
        elastic.close()
    model.zero_grad(set_to_none=True)
    want = masked_mean((x, y, weights))
    want.backward()
    torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=1e-14)
    for grad, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-12, atol=1e-14)


def test_hooks_that_would_see_a_part_of_the_gradient_are_refused() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accumulation = model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(RuntimeRefusal) as refused:
        lull.attach(model, optimizer, budget=64 * MIB, socket="", partition="trusted")
    assert str(refused.value) == (
        "attach model: parameter 0.weight has a register_post_accumulate_grad_hook of its own; it would run once a "
        "microbatch, on a part of the gradient, want none: do its work after elastic.backward; nothing is attached"
    )
    accumulation.remove()
    clip = model[2].bias.register_hook(lambda g: g.clamp(-1, 1))
    with pytest.raises(RuntimeRefusal) as refused:
        lull.attach(model, optimizer, budget=64 * MIB, socket="")
    assert str(refused.value) == (
        "attach model: parameter 2.bias has a register_hook; it would run once a microbatch, want none, or "
        'partition="trusted" if it is linear in the gradient and does nothing else; nothing is attached'
    )
    elastic = lull.attach(model, optimizer, budget=64 * MIB, socket="", partition="trusted")
    try:
        clip.remove()
        x, y = torch.randn(12, 8).double(), torch.randn(12, 4).double()
        elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
        before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        late = model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
        with pytest.raises(RuntimeRefusal, match="of shape \\(16, 8\\) has a register_post_accumulate_grad_hook"):
            elastic.backward((x, y), lambda b: mse_loss(model(b[0]), b[1]))
        late.remove()
        for grad, p in zip(before, model.parameters(), strict=True):
            assert torch.equal(grad, p.grad)
    finally:
        elastic.close()
