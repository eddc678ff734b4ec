"""Small models, the storm of orders, and the plain training that Lull is compared with."""

from __future__ import annotations

import copy
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import lull
from lull._protocol import Ack, Budget

MIB = 1 << 20
torch.set_num_threads(1)


class Mlp(nn.Module):
    """Blocks of Linear, GELU, Dropout and an in-place ReLU."""

    def __init__(self, width: int = 256, depth: int = 4, drop: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Dropout(drop),
                nn.Linear(4 * width, width),
                nn.ReLU(inplace=True),
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class ConvBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)) + x)


class Cnn(nn.Module):
    def __init__(self, channels: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)
        self.heads = 4

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(F.gelu(self.up(self.ln2(x)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attend(x))
        return x + self.feed(x)


class CheckpointedBlock(Block):
    """A block whose author checkpoints half of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attend(x))
        return x + checkpoint(self.feed, x, use_reentrant=False)


class Gpt(nn.Module):
    """Byte-level, with the head's weight tied to the embedding if asked."""

    def __init__(
        self,
        width: int = 64,
        depth: int = 4,
        length: int = 64,
        drop: float = 0.1,
        tied: bool = False,
        block: type = Block,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(block(width, drop) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.length = length

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text_loss(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda ids: F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def pair_loss(model: nn.Module) -> Callable[[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    return lambda pair: F.cross_entropy(model(pair[0]), pair[1])


attached: list[lull.Elastic] = []
"""What this test attached: closed after it, however it ended (conftest.py), since one arena serves the process."""


def attach(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> lull.Elastic:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        attached.append(lull.attach(model, optimizer, socket="", **options))
    return attached[-1]


class Recorder:
    """An Elastic with the partition that it really used, and orders from another thread."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        # Sums and other losses are used here on purpose, each with its own reference.
        self.elastic = attach(model, optimizer, **{"partition": "trusted", **options})
        self._overdrafts = self.elastic.device.pool.counters()["overdrafts"]
        self.parts: list[int] = []
        self.acks: list[tuple[Budget, Ack]] = []
        ran = self.elastic.stats.ran

        def recording(samples: int, took: float) -> None:
            self.parts.append(samples)
            ran(samples, took)

        self.elastic.stats.ran = recording  # type: ignore[method-assign]
        self._epoch = 0
        self.promise: Ack | None = None
        """The ack whose `held` holds now; None from the next order to its ack."""

    @property
    def overdrafts(self) -> int:
        """Allocations above the cap since attach; the arena counts those of the whole process."""
        return self.elastic.device.pool.counters()["overdrafts"] - self._overdrafts

    def order(self, bytes: int, within_us: int = 0, then: Callable[[], None] | None = None) -> None:
        """One order; once it is acked, `then` runs in a thread of its own."""
        self._epoch += 1
        order = Budget(self._epoch, bytes, within_us)
        self.promise = None

        def reply(ack: Ack) -> None:
            self.acks.append((order, ack))
            if ack.how != "superseded" and ack.epoch == self._epoch:  # else the next order is on its way
                self.promise = ack
            if then is not None:
                threading.Thread(target=then).start()

        self.elastic.apply(order, reply)

    def batches(self, least: int, bitten: Callable[[], bool] | None = None) -> Iterator[int]:
        """Numbers of batches: so many, and more until an order of a storm has cost a microbatch something.

        Orders come when they come: a fast machine may have trained a few batches before one bites.
        """
        stats = self.elastic.stats
        for n in itertools.count():
            if n >= least and (bitten() if bitten is not None else stats.dropped + stats.discards > 0):
                return
            assert n < least + 500, "the storm never bit"
            yield n

    @contextmanager
    def storm(self, seed: int, low: int, high: int, gap: tuple[float, float] = (0.0005, 0.02)) -> Iterator[None]:
        """Orders at random moments, to random budgets, until the end."""
        over = threading.Event()
        draw = random.Random(seed)

        def blow() -> None:
            while not over.wait(draw.uniform(*gap)):
                self.order(high if draw.random() < 0.3 else draw.randint(low, high))

        thread = threading.Thread(target=blow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.order(high)


def plain_step(
    model: nn.Module,
    batch: Any,
    loss_fn: Callable[[Any], torch.Tensor],
    parts: list[int],
    cut: Callable[[Any, int, int], Any],
) -> None:
    """The same partition without Lull: accumulate mean losses over microbatches."""
    size = sum(parts)
    start = 0
    for count in parts:
        loss = loss_fn(cut(batch, start, start + count))
        (loss if count == size else loss * (count / size)).backward()
        start += count


def twin(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)
