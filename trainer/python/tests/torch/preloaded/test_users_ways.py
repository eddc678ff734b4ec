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
