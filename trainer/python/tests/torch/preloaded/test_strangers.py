"""What wants a gradient and is trained by nobody here is refused, and its gradient is as it was."""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import lull
from lull._errors import RuntimeRefusal
from lull._torch.owed import Discard

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB

pytestmark = pytest.mark.cpu


def net() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()


STRANGER = (
    r"loss_fn: its loss depends on a tensor of shape \(4,\) that wants a gradient and is neither in the model nor in "
    r"attach's optimizer, want it in one of them: .*requires_grad_\(False\).*; the microbatch is undone"
)


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.requires_grad_])
def test_tensor_that_nobody_trains_here_is_refused_and_its_gradient_is_as_it_was(
    kind: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model, x = net(), torch.randn(12, 8).double()
    scale = kind(torch.ones(4, dtype=torch.float64))
    for before in (None, torch.full((4,), 3.0, dtype=torch.float64)):
        scale.grad = None if before is None else before.clone()
        elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
        try:
            with pytest.raises(RuntimeRefusal, match=STRANGER):
                elastic.backward(x, lambda b: (model(b) * scale).square().mean())
            assert scale.grad is before or torch.equal(scale.grad, before)
            assert all(p.grad is None for p in model.parameters())
        finally:
            elastic.close()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")  # where the loss is asked only
@pytest.mark.parametrize("depth", [1, 2])
def test_tensor_inside_a_reentrant_checkpoint_is_refused_before_it_gets_a_gradient(depth: int) -> None:
    """Its graph is made only in the backward pass; the checkpoint may lie in another."""
    model, x = net(), torch.randn(12, 8).double()
    scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def inner(b: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda b: model[2](b) * scale, b, use_reentrant=True)

    def loss_fn(b: torch.Tensor) -> torch.Tensor:
        b = model[1](model[0](b))
        return (inner(b) if depth == 1 else checkpoint(inner, b, use_reentrant=True)).square().mean()

    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        with pytest.raises(RuntimeRefusal, match=STRANGER):
            elastic.backward(x, loss_fn)
        assert scale.grad is None
        assert all(p.grad is None for p in model.parameters())
        scale.requires_grad_(False)
        elastic.backward(x, loss_fn)
        assert all(p.grad is not None for p in model.parameters())
    finally:
        elastic.close()


@pytest.mark.parametrize("had", [False, True])
@pytest.mark.parametrize("wrap", [lambda x, y: (x, y), lambda x, y: UserDict(x=x, y=y)])
def test_batch_that_wants_a_gradient_gets_it_once_whatever_is_undone(
    had: bool, wrap: Callable[[torch.Tensor, torch.Tensor], Any]
) -> None:
    model, x, y = net(), torch.randn(12, 8).double().requires_grad_(), torch.randn(12, 4).double()
    before = torch.randn(12, 8).double() if had else None
    x.grad = None if before is None else before.clone()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    elastic._next_size = lambda left: min(left, 4)  # type: ignore[method-assign]
    undone: list[int] = []

    def loss(b: Any) -> torch.Tensor:
        inputs, wanted = (b["x"], b["y"]) if isinstance(b, UserDict) else b
        return mse_loss(model(inputs), wanted)

    real = elastic._pass

    def passed(*args: Any) -> torch.Tensor:
        """Undone at its end, as for an order that comes late in the backward pass."""
        got = real(*args)
        if elastic.floor is not None and len(undone) < 3:
            undone.append(1)
            raise Discard
        return got

    elastic._pass = passed  # type: ignore[method-assign]
    try:
        elastic.backward(wrap(x, y), loss)
    finally:
        elastic.close()
    assert len(undone) == 3
    got, x.grad = x.grad, None
    model.zero_grad()
    mse_loss(model(x), y).backward()
    want = x.grad if before is None else before + x.grad
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("wrap", [dict, UserDict])
def test_loss_fn_may_take_things_out_of_its_batch(wrap: Callable[..., Any]) -> None:
    model, x, y = net(), torch.randn(12, 8).double(), torch.randn(12, 4).double()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    elastic._next_size = lambda left: min(left, 4)  # type: ignore[method-assign]
    whole = wrap(x=x, y=y)

    def loss(b: Any) -> torch.Tensor:
        wanted = b.pop("y")
        return mse_loss(model(b["x"]), wanted)

    try:
        for _ in range(2):
            model.zero_grad()
            elastic.backward(whole, loss)
    finally:
        elastic.close()
    assert set(whole) == {"x", "y"}, "the user's own is as it was"
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    mse_loss(model(x), y).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=1e-10, atol=1e-12)


def test_gradient_that_the_user_made_since_an_earlier_batch_stays() -> None:
    model, x = net(), torch.randn(1, 8).double()
    scale = torch.ones(4, dtype=torch.float64)
    elastic = lull.attach(
        model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="", partition="trusted"
    )
    try:
        elastic.backward(x, lambda b: model(b).square().mean())
        scale.requires_grad_()
        elastic.backward(x, lambda b: (model(b) * scale).square().mean())  # once it may be loss_fn's own
        scale.grad = torch.full((4,), 5.0, dtype=torch.float64)
        with pytest.raises(RuntimeRefusal, match=STRANGER):
            elastic.backward(x, lambda b: (model(b) * scale).square().mean())
        assert torch.equal(scale.grad, torch.full((4,), 5.0, dtype=torch.float64))
    finally:
        elastic.close()


@pytest.mark.parametrize("trusted", [False, True])
def test_loss_head_with_its_own_optimizer_is_right_once_attach_knows_it(trusted: bool) -> None:
    model, head = net(), nn.Linear(4, 2).double()
    own = torch.optim.SGD(head.parameters(), 0.1)
    x, y = torch.randn(12, 8).double(), torch.randn(12, 2).double()
    how = {"budget": 64 * MIB, "socket": "", "partition": "trusted" if trusted else "checked"}
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), **how)
    try:
        with pytest.raises(RuntimeRefusal, match="neither in the model nor in attach's optimizer"):
            elastic.backward((x, y), lambda b: mse_loss(head(model(b[0])), b[1]))
        assert all(p.grad is None for p in head.parameters())
    finally:
        elastic.close()
    del own
    both = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    elastic = lull.attach(model, both, **how)
    try:
        elastic.backward((x, y), lambda b: mse_loss(head(model(b[0])), b[1]))
        got = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    finally:
        elastic.close()
    both.zero_grad()
    mse_loss(head(model(x)), y).backward()
    for grad, p in zip(got, head.parameters(), strict=True):
        torch.testing.assert_close(grad, p.grad, rtol=1e-12, atol=1e-14)


def test_stranger_that_comes_in_a_later_batch_is_refused_before_anything_is_added_to_it() -> None:
    model, x = net(), torch.randn(12, 8).double()
    head = nn.Linear(4, 2).double().requires_grad_(False)
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        elastic.backward(x, lambda b: head(model(b)).square().mean())
        model.zero_grad()
        head.requires_grad_(True)
        with pytest.raises(RuntimeRefusal, match="neither in the model nor in attach's optimizer"):
            elastic.backward(x, lambda b: head(model(b)).square().mean())
        assert all(p.grad is None for p in [*head.parameters(), *model.parameters()])
    finally:
        elastic.close()


def test_leaf_that_the_loss_makes_itself_is_no_stranger() -> None:
    model, x = net(), torch.randn(12, 8).double()

    def penalty(b: torch.Tensor) -> torch.Tensor:
        inputs = b.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        return (slope.square().sum(1) + (model(inputs) * inputs[:, :4]).sum(1)).mean()

    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    try:
        for _ in range(3):
            model.zero_grad()
            elastic.backward(x, penalty)
        got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    finally:
        elastic.close()
    model.zero_grad()
    penalty(x).backward()
    want = [p.grad for p in model.parameters() if p.grad is not None]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor.requires_grad_])
@pytest.mark.parametrize("had", [False, True])
@pytest.mark.parametrize("at", [{5}, {2, 9}, {11}])
def test_stranger_that_only_some_samples_reach_is_refused_and_its_gradient_is_that_of_whole_batches(
    at: set[int], had: bool, kind: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Each microbatch may reach another tensor: the first ones, and the dry step, say nothing of the others."""
    model, x = net(), torch.randn(12, 8).double()
    marks = torch.tensor([float(i in at) for i in range(12)])
    scale = kind(torch.ones(4, dtype=torch.float64))
    before = torch.full((4,), 3.0, dtype=torch.float64) if had else None
    scale.grad = None if before is None else before.clone()
    elastic = lull.attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="")
    elastic._next_size = lambda left: 1  # type: ignore[method-assign]

    def loss(pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        out = model(pair[0])
        return (out * scale if pair[1].any() else out).square().mean()

    want = before
    if kind is not nn.Parameter and len(at) == 1:  # the first batch may have made it, and is done; not so the second
        one = slice(min(at), min(at) + 1)
        (first,) = torch.autograd.grad(loss((x[one], marks[one])) / 12, scale)
        want = first if before is None else before + first

    def train() -> None:
        for _ in range(2):  # what one call made is seen once: it is what lives on that is refused
            model.zero_grad()
            elastic.backward((x, marks), loss)

    try:
        with pytest.raises(RuntimeRefusal, match=STRANGER):
            train()
        assert scale.grad is want or torch.allclose(scale.grad, want, rtol=1e-12)
        assert all(p.grad is None for p in model.parameters())
    finally:
        elastic.close()


def test_loss_that_is_a_strange_parameter_itself_is_refused() -> None:
    model, x, own = net(), torch.randn(12, 8).double(), nn.Parameter(torch.ones(()))
    elastic = lull.attach(
        model, torch.optim.SGD(model.parameters(), 0.1), budget=64 * MIB, socket="", partition="trusted"
    )
    try:
        with pytest.raises(RuntimeRefusal, match=r"depends on a tensor of shape \(\)"):
            elastic.backward(x, lambda b: own)
        assert own.grad is None
    finally:
        elastic.close()
