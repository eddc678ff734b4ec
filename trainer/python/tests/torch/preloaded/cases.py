"""What people train, by name: the model, its batches, its loss, and what the loss divides by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from models import CheckpointedBlock, Cnn, Gpt, Mlp, pair_loss, text_loss
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

LossFn = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One way to train. `loss_of(model)` is the loss of a batch, `call(batch)` what backward is told of it."""

    make: Callable[[], nn.Module]
    draw: Callable[[int], Any]
    loss_of: Callable[[nn.Module], LossFn]
    size: int = 32
    call: Callable[[Any], dict[str, Any]] = lambda batch: {}
    narrow: bool = False
    """16-bit parameters, whose gradients are added up in float32."""

    def shares(self, batch: Any, parts: list[int]) -> list[float]:
        """The factor of each microbatch's loss, worked out here, not by Lull."""
        told = self.call(batch)
        if told.get("reduction") == "sum":
            return [1.0] * len(parts)
        weights = told.get("weights")
        each = [1.0] * sum(parts) if weights is None else [float(w) for w in weights]
        starts = [sum(parts[:i]) for i in range(len(parts))]
        whole = math.fsum(each)
        return [math.fsum(each[s : s + n]) / whole for s, n in zip(starts, parts, strict=True)]


def images(n: int) -> Any:
    return torch.randn(n, 3, 32, 32), torch.randint(0, 8, (n,))


def vectors(n: int) -> Any:
    return torch.randn(n, 256), torch.randint(0, 8, (n,))


def texts(n: int) -> Any:
    return torch.randint(0, 256, (n, 65))


def padded(n: int) -> Any:
    """Texts of different lengths; 0 is padding."""
    ids = torch.randint(1, 256, (n, 65))
    lengths = torch.randint(8, 65, (n, 1))
    return torch.where(torch.arange(65) < lengths, ids, 0)


def frozen() -> nn.Module:
    model = Gpt()
    for p in model.blocks[1].parameters():
        p.requires_grad_(False)
    model.tokens.weight.requires_grad_(False)
    return model


class LowRank(nn.Module):
    """LoRA: the frozen weight plus a trained product of two thin matrices."""

    def __init__(self, rows: int, columns: int, rank: int = 4) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, columns) / columns**0.5)
        self.b = nn.Parameter(torch.randn(rows, rank) * 0.1)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.b @ self.a


def lora() -> nn.Module:
    """A GPT of which only low-rank additions to its projections are trained."""
    model = Gpt(drop=0.0)
    for p in model.parameters():
        p.requires_grad_(False)
    for module in list(model.blocks.modules()):
        if isinstance(module, nn.Linear) and not is_parametrized(module):
            rows, columns = module.weight.shape
            register_parametrization(module, "weight", LowRank(rows, columns))
    for module in model.modules():
        if isinstance(module, LowRank):
            module.requires_grad_(True)
    return model


class Adapter(nn.Module):
    """LoRA as libraries write it: a path of its own beside the frozen layer, with dropout."""

    def __init__(self, inner: nn.Linear, rank: int = 4, drop: float = 0.1) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.drop = nn.Dropout(drop)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 2.0 * self.up(self.down(self.drop(x)))


def adapters() -> nn.Module:
    model = Gpt().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.down = Adapter(block.qkv), Adapter(block.down)
    return model


def cast_loss(model: nn.Module) -> LossFn:
    inner = text_loss(model)

    def loss(ids: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return inner(ids)

    return loss


def sum_loss(model: nn.Module) -> LossFn:
    return lambda pair: F.cross_entropy(model(pair[0]), pair[1], reduction="sum")


def token_loss(model: nn.Module) -> LossFn:
    """The mean over tokens that are no padding."""
    return lambda ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)


def several_losses(model: nn.Module) -> LossFn:
    """Next tokens, a penalty on the logits, and a reconstruction from the embedding that skips the blocks."""

    def loss(ids: Any) -> torch.Tensor:
        logits = model(ids[:, :-1])
        first = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        second = torch.logsumexp(logits, -1).square().mean()
        third = F.cross_entropy(model.head(model.tokens(ids)).flatten(0, 1), ids.flatten())
        return first + 1e-3 * second + 0.1 * third

    return loss


def penalised(model: nn.Module) -> LossFn:
    """A gradient penalty: the loss holds a gradient itself, so backward goes through it a second time."""

    def loss(pair: Any) -> torch.Tensor:
        x = pair[0].clone().requires_grad_()
        logits = model(x)
        (slope,) = torch.autograd.grad(logits.logsumexp(1).sum(), x, create_graph=True)
        return F.cross_entropy(logits, pair[1]) + 0.1 * slope.square().sum(1).mean()

    return loss


def still(block: type[nn.Module] | None = None, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Gpt(drop=0.0, **({"block": block} if block else {}), **options)


EXACT: dict[str, Case] = {
    "mlp with dropout and in-place relu": Case(Mlp, vectors, pair_loss, 512),
    "cnn with batchnorm": Case(Cnn, images, pair_loss),
    "transformer with dropout": Case(Gpt, texts, text_loss),
    "lora on weights": Case(lora, texts, text_loss),
    "lora beside layers, with dropout": Case(adapters, texts, text_loss),
    "tied weights": Case(lambda: Gpt(tied=True), texts, text_loss),
    "frozen layers": Case(frozen, texts, text_loss),
    "autocast bf16": Case(Gpt, texts, cast_loss),
    "bf16 parameters": Case(lambda: Gpt().bfloat16(), texts, text_loss, narrow=True),
    "user checkpointing": Case(lambda: Gpt(block=CheckpointedBlock), texts, text_loss),
    "float64": Case(lambda: Gpt(drop=0.2).double(), texts, text_loss),
    "several losses": Case(Gpt, texts, several_losses),
    "gradient penalty": Case(Mlp, vectors, penalised, 256),
    "sum over samples": Case(Mlp, vectors, sum_loss, 512, lambda batch: {"reduction": "sum"}),
    "mean over tokens": Case(Gpt, padded, token_loss, 32, lambda ids: {"weights": (ids[:, 1:] != 0).sum(1)}),
}
"""Equal, bit for bit, to the same partition undisturbed."""

ONE_PASS: dict[str, Case] = {
    "mlp": Case(lambda: Mlp(drop=0.0), vectors, pair_loss, 48),
    "cnn with batchnorm in eval mode": Case(lambda: Cnn().eval(), images, pair_loss),
    "transformer": Case(still(), texts, text_loss),
    "lora on weights": Case(lora, texts, text_loss),
    "tied weights": Case(still(tied=True), texts, text_loss),
    "user checkpointing": Case(still(CheckpointedBlock), texts, text_loss),
    "several losses": Case(still(), texts, several_losses),
    "gradient penalty": Case(lambda: Mlp(drop=0.0), vectors, penalised, 48),
    "sum over samples": Case(lambda: Mlp(drop=0.0), vectors, sum_loss, 48, lambda batch: {"reduction": "sum"}),
    "mean over tokens": Case(still(), padded, token_loss, 32, lambda ids: {"weights": (ids[:, 1:] != 0).sum(1)}),
}
"""Equal to one pass over the batch too: the loss separates over samples, and nothing is drawn or shared."""
