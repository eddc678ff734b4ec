"""What trains: a small transformer, large enough on a GPU that its activations are gigabytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from place import Gpu, Rehearsal
from torch import nn

import lull


@dataclass(frozen=True)
class Shape:
    """Of the model and its batch; `samples` a batch, `tokens` a sample."""

    width: int
    depth: int
    tokens: int
    samples: int
    microbatch: int


GPU = Shape(width=1024, depth=16, tokens=512, samples=64, microbatch=16)
LEAN = Shape(width=1024, depth=16, tokens=512, samples=16, microbatch=4)
"""For GPUs of less than 32 GiB: plain accumulation must fit beside Lull's half."""

SMALL = Shape(width=64, depth=3, tokens=32, samples=16, microbatch=4)


class Block(nn.Module):
    """Attention and a perceptron, without dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        grown: torch.Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return grown


class Model(nn.Module):
    """Blocks and a head of one number a token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.depth))
        self.head = nn.Linear(shape.width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


class Job:
    """One model, its optimizer and one batch; attach makes it elastic."""

    def __init__(self, place: Gpu | Rehearsal, seed: int = 1) -> None:
        self.place = place
        self.shape = SMALL if place.kind == "cpu" else GPU if place.total >= 32 << 30 else LEAN
        torch.manual_seed(seed)
        self.model = Model(self.shape).to(place.kind)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        shape = (self.shape.samples, self.shape.tokens, self.shape.width)
        self.batch = torch.randn(*shape, device=place.kind)
        self.elastic: Any = None
        self.epoch = 0

    def attach(self, budget: int | None = None) -> Any:
        """lull.attach without a sidecar; microbatches of this shape's size, until orders say otherwise."""
        most = budget or (self.place.total // 2)
        self.elastic = lull.attach(self.model, self.optimizer, socket="", budget=most)
        self.elastic._most = self.shape.microbatch
        return self.elastic

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over samples."""
        mean: torch.Tensor = self.model(x).square().mean()
        return mean

    def elastic_batch(self) -> None:
        """Gradients of one batch under Lull, in microbatches no larger than plain ones."""
        self.optimizer.zero_grad(set_to_none=True)
        self.elastic._most = self.shape.microbatch
        self.elastic.backward(self.batch, self.loss)

    def plain_batch(self) -> None:
        """Gradients of one batch by plain accumulation of the same microbatches."""
        self.optimizer.zero_grad(set_to_none=True)
        for start in range(0, self.shape.samples, self.shape.microbatch):
            micro = self.batch[start : start + self.shape.microbatch]
            part: Any = self.loss(micro) * (len(micro) / self.shape.samples)
            part.backward()

    def timed(self, batch: Callable[[], None]) -> float:
        """Seconds of a batch and the optimizer's step, to the end of what they queued."""
        self.place.synchronize()
        began = time.perf_counter()
        batch()
        self.optimizer.step()
        self.place.synchronize()
        return time.perf_counter() - began

    def order(self, bytes: int, reply: Callable[[Any], None]) -> None:
        """As the agent's thread would bring it."""
        from lull._protocol import Budget

        self.epoch += 1
        self.elastic.apply(Budget(self.epoch, bytes), reply)


def figures(ms: list[float]) -> dict[str, Any]:
    """n, median, P99 and most, in the unit of the list; None where there is nothing."""
    if not ms:
        return {"n": 0, "p50": None, "p99": None, "max": None}
    ordered = sorted(ms)
    return {
        "n": len(ms),
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "max": ordered[-1],
    }
