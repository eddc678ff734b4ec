"""One rank of the job that bench.py measures: a byte-level GPT, trained in three ways that take turns.

    LULL_SOCKET= torchrun ... job.py SHAPE ROUNDS BATCHES SIZE OUT

Rank 0 has all the memory that it can use, rank 1 room for one sample: its microbatches are kept to that size, since a
budget in the arena's units of 2 MiB would not be that exact. `same` keeps both ranks to it: the same microbatches on
both, and half of the batch each. `own` lets each have what it has, half of the batch each. `shared` lets the ranks
share the batch out. Rank 0 writes what was measured.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import lull

VOCABULARY = 256
PLENTY = 1 << 30
WAYS = ("same", "own", "shared")
WARM = 3
"""Batches after a change of way that are not measured: sizes and speeds are learned anew."""

# width, heads, layers, context
SHAPES = {"thin": (32, 2, 8, 8), "wide": (256, 4, 4, 128)}


class Block(nn.Module):
    """Causal attention and a feed-forward layer, normalised first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class Gpt(nn.Module):
    """A byte-level language model."""

    def __init__(self, width: int, heads: int, layers: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Rank:
    """One rank's job, and what it measures."""

    def __init__(self, shape: str, size: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        width, heads, layers, context = SHAPES[shape]
        self.rank, self.size = dist.get_rank(), size
        self.model = nn.parallel.DistributedDataParallel(Gpt(width, heads, layers, context))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.elastic = lull.attach(self.model, self.optimizer, budget=PLENTY)
        self.batches = torch.Generator().manual_seed(2)
        self.context = context
        self.parts: list[int] = []
        self.most = PLENTY
        """Samples of a microbatch, at most."""
        ran, fitting = self.elastic.stats.ran, self.elastic._next_size
        self.elastic._next_size = lambda left: min(fitting(left), self.most)  # type: ignore[method-assign]

        def recording(samples: int, took: float) -> None:
            self.parts.append(samples)
            ran(samples, took)

        self.elastic.stats.ran = recording  # type: ignore[method-assign]

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def train(self, way: str) -> None:
        """One global batch."""
        ids = torch.randint(0, VOCABULARY, (self.size, self.context + 1), generator=self.batches)
        half = self.size // 2
        mine = ids if way == "shared" else ids[half * self.rank : half * (self.rank + 1)]
        self.optimizer.zero_grad()
        self.elastic.backward(mine, self.loss, shared=way == "shared")
        self.optimizer.step()

    def measure(self, way: str, batches: int) -> dict[str, Any]:
        """What `batches` batches take, from a common start to a common end."""
        self.most = 1 if self.rank == 1 or way == "same" else PLENTY
        for _ in range(WARM):
            self.train(way)
        stats = self.elastic.stats
        self.parts.clear()
        waited, exchanged, samples = stats.waited_s, stats.exchange_s, stats.samples
        dist.barrier()
        began = time.monotonic()
        for _ in range(batches):
            self.train(way)
        dist.barrier()
        took = time.monotonic() - began
        return {
            "took_s": took,
            "samples": stats.samples - samples,
            "microbatches": len(self.parts),
            "waited_s": stats.waited_s - waited,
            "exchange_s": stats.exchange_s - exchanged,
        }


def main() -> None:
    """Takes turns with the ways, and starts another one each round."""
    shape, rounds, batches, size, out = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    dist.init_process_group("gloo")
    rank = Rank(shape, size)
    rank.train("own")
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        for way in WAYS[number % 3 :] + WAYS[: number % 3]:
            mine = rank.measure(way, batches)
            every: list[Any] = [None, None]
            dist.all_gather_object(every, mine)
            found.append({"way": way, "round": number, "ranks": every})
    if rank.rank == 0:
        out.write_text(json.dumps({"parameters": sum(p.numel() for p in rank.model.parameters()), "runs": found}))
    dist.barrier()
    rank.elastic.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
