"""What torch.compile, torch.jit, forward AD and a choice of kernels make of a model: right, or refused by name."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward
import torch.nn as nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lull._errors import RuntimeRefusal
from lull._torch.kernels import Chosen, kernels_now

sys.path.insert(0, str(Path(__file__).parent))
from models import MIB, Gpt, Mlp, Recorder, attach, pair_loss, plain_step, text_loss

pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]  # of PyTorch, while it traces

BACKEND = "aot_eager"
"""Traces and splits the graphs as the default does, and compiles nothing."""


def gpt(**options: Any) -> Gpt:
    torch.manual_seed(4)
    return Gpt(drop=0.0, **options)


def blocks_compiled() -> nn.Module:
    model = gpt()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend=BACKEND)
    return model


def whole_compiled() -> Any:
    return torch.compile(gpt(), backend=BACKEND)


def compiled_in_place(*parts: str) -> nn.Module:
    model = gpt()
    for part in parts:
        model.get_submodule(part).compile(backend=BACKEND)
    return model


def on_other_kernels(model: nn.Module) -> Callable[[Any], torch.Tensor]:
    inner = text_loss(model)

    def loss(ids: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return inner(ids)

    return loss


@pytest.mark.parametrize(
    ("make", "loss_of", "options", "empties"),
    [
        (blocks_compiled, text_loss, {}, True),
        (whole_compiled, text_loss, {"blocks": []}, False),
        (lambda: compiled_in_place(""), text_loss, {"blocks": []}, False),
        (lambda: compiled_in_place("blocks.0.up", "blocks.1.ln1"), text_loss, {}, True),
        (gpt, on_other_kernels, {}, True),
        (gpt, lambda model: torch.compile(text_loss(model), backend=BACKEND), {}, False),
    ],
    ids=["blocks", "whole without blocks", "whole in place without blocks", "inside blocks", "kernels", "loss"],
)
def test_gradients_of_blocks_that_run_again_are_those_of_their_first_run(
    make: Callable[[], nn.Module], loss_of: Any, options: dict[str, Any], empties: bool
) -> None:
    model = make()
    loss = loss_of(model)
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=256 * MIB, **options)
    ids = torch.randint(0, 256, (4, 65))
    elastic.backward(ids, loss)
    model.zero_grad()
    elastic.orders.may_store = lambda tensor: False  # type: ignore[method-assign]
    switches = kernels_now()
    elastic.backward(ids, loss)
    assert (elastic.stats.recomputed > 0) == empties
    assert kernels_now() == switches
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    elastic.close()
    model.zero_grad()
    loss(ids).backward()
    for mine, p in zip(got, model.parameters(), strict=True):
        assert p.grad is not None
        assert torch.equal(mine, p.grad)


@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
def test_kernels_of_then_are_in_place_until_those_of_now_are_back(kernel: SDPBackend) -> None:
    now = kernels_now()
    with sdpa_kernel(kernel):
        then = kernels_now()
    assert then != now == kernels_now()
    with Chosen(then):
        assert kernels_now() == then
    assert kernels_now() == now


AROUND = (
    "attach model: {} is compiled around its blocks (torch.compile), want its blocks compiled one by one (blocks[i] = "
    "torch.compile(blocks[i])), or blocks=[], with which nothing is emptied: a block inside it cannot be run again by "
    "itself; nothing is attached"
)
SCRIPT = (
    "attach model: {} is TorchScript (torch.jit), want Python modules: buffers and attributes of it cannot be put "
    "back; nothing is attached"
)


def holding(inner: nn.Module) -> nn.Module:
    model = nn.Module()
    model.add_module("inner", inner)
    return model


def scripted(at: str) -> nn.Module:
    model = Mlp()
    parent, _, name = at.rpartition(".")
    setattr(model.get_submodule(parent), name, torch.jit.script(model.get_submodule(at)))
    return model


@pytest.mark.parametrize(
    ("make", "options", "want"),
    [
        (whole_compiled, {}, AROUND.format("the model")),
        (lambda: holding(whole_compiled()), {}, AROUND.format("inner")),
        (lambda: compiled_in_place(""), {}, AROUND.format("the model")),
        (
            lambda: compiled_in_place("blocks.2"),
            {},
            "attach blocks: blocks.2 was compiled in place (its compile()), want torch.compile(block) put in its "
            "place, or blocks= without it: run again by itself it would be the block that is not compiled; nothing is "
            "attached",
        ),
        (lambda: scripted("blocks.1"), {}, SCRIPT.format("blocks.1")),
        (lambda: scripted("blocks.1.0"), {}, SCRIPT.format("blocks.1.0")),
        (lambda: torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), {}, SCRIPT.format("the model")),
        (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), {"blocks": []}, SCRIPT.format("the model")),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_by_its_name(
    make: Callable[[], nn.Module], options: dict[str, Any], want: str
) -> None:
    model = make()
    with pytest.raises(RuntimeRefusal, match=f"^{re.escape(want)}$"):
        attach(model, torch.optim.SGD(model.parameters(), 0.1), **options)


def test_compiled_loss_in_which_blocks_cannot_run_again_is_named() -> None:
    """Where the mode of the model counts (dropout), its blocks are traced with their hooks."""
    torch.manual_seed(4)
    model = Gpt(drop=0.1)
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=256 * MIB)
    with pytest.raises(RuntimeRefusal, match=r"torch\.compile around loss_fn, where blocks compiled one by one are"):
        elastic.backward(torch.randint(0, 256, (4, 65)), torch.compile(text_loss(model), backend=BACKEND))


class Tangents(nn.Module):
    """A block that takes a directional derivative on its way."""

    def __init__(self, block: nn.Module, level: bool) -> None:
        super().__init__()
        self.block, self.level = block, level

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.level:
            y, slope = torch.func.jvp(self.block, (x,), (torch.ones_like(x),))
            return y + 0.1 * slope
        with forward.dual_level():
            y, slope = forward.unpack_dual(self.block(forward.make_dual(x, torch.ones_like(x))))
        return y + 0.1 * slope


@pytest.mark.parametrize("level", [False, True])
@pytest.mark.parametrize("options", [{}, {"blocks": []}])
def test_forward_ad_is_refused_by_name(level: bool, options: dict[str, Any]) -> None:
    torch.manual_seed(4)
    model = Mlp(drop=0.0)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = Tangents(nn.Sequential(block[0], nn.Tanh(), block[3]), level)
    elastic = attach(model, torch.optim.SGD(model.parameters(), 0.1), budget=256 * MIB, **options)
    with pytest.raises(
        RuntimeRefusal,
        match=r"elastic\.backward model: a Tensor of shape \(.*\) has no memory of its own, want one that has: forward "
        r"AD \(torch\.autograd\.forward_ad, torch\.func\.jvp\), .*; the microbatch is undone$",
    ):
        elastic.backward((torch.randn(8, 256), torch.randint(0, 8, (8,))), pair_loss(model))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend compiles with g++")
def test_blocks_of_the_default_backend_are_the_same_bits_under_orders() -> None:
    """Inductor's own code and its own random numbers, against the same compiled blocks in plain PyTorch."""
    model, other = Gpt(drop=0.1, depth=2), Gpt(drop=0.1, depth=2)
    other.load_state_dict(model.state_dict())
    for each in (model, other):
        for i, block in enumerate(each.blocks):
            each.blocks[i] = torch.compile(block)
    rec = Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), budget=64 * MIB)
    rec.elastic._next_size = lambda left: min(left, 8)  # type: ignore[method-assign]
    stats = rec.elastic.stats
    for i in rec.batches(4, lambda: stats.recomputed + stats.discards > 0):
        batch = torch.randint(0, 256, (16, 65))
        torch.manual_seed(i)
        rec.parts.clear()
        with rec.storm(i, 2 * MIB, 12 * MIB, gap=(0.0002, 0.005)):
            rec.elastic.backward(batch, text_loss(model))
        torch.manual_seed(i)
        plain_step(other, batch, text_loss(other), rec.parts, lambda ids, start, stop: ids[start:stop])
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad), f"{name} in batch {i}"
        model.zero_grad()
        other.zero_grad()
