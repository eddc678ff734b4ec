"""The training job that handover_bench.py takes memory from: the demo's shape, on synthetic bytes.

    handover_job.py BATCH [WIDTH LAYERS]

It is told on stdin how to meet orders (`release slots`) and what to say (`stats`), one word line each,
between batches as well as inside them, so that all methods run interleaved in one process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import lull

HEADS, CONTEXT, VOCABULARY = 4, 128, 256


class Block(nn.Module):
    """Causal attention and a feed-forward layer, normalised first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, width))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class Gpt(nn.Module):
    """A byte-level language model: of 3.3 M parameters with 4 layers of 256."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def stats(elastic: lull.Elastic) -> dict[str, Any]:
    """What the controller asks for between orders."""
    s, pool = elastic.stats, elastic.device.pool
    return {
        "resident": pool.resident(),
        "bytes": elastic.device.bytes(),
        "baseline": elastic.baseline,
        "floor": elastic.floor.bytes if elastic.floor else 0,
        "parameters": sum(p.numel() for p in elastic.model.parameters()),
        "samples_discarded": s.samples_discarded,
        "microbatch": s.microbatch,
        "microbatch_ms": s.microbatch_ms,
        "batch_ms": s.batch_ms,
        "discards": s.discards,
        "lost_s": s.lost_s,
        "recomputed": s.recomputed,
        "recompute_s": s.recompute_s,
        "counters": pool.counters(),
        "arena": pool.capped,
    }


def obey(elastic: lull.Elastic) -> None:
    """Reads commands until stdin ends; that also ends the job."""
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "release":
            elastic.orders.set_release(rest)
        print(json.dumps(stats(elastic)), flush=True)
    os._exit(0)


def main() -> None:
    """Trains until stdin ends."""
    batch = int(sys.argv[1])
    width, layers = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (256, 4)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Gpt(width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    elastic = lull.attach(model, optimizer)
    data = torch.randint(0, VOCABULARY, (512, CONTEXT + 1))

    def loss_fn(ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def train() -> None:
        elastic.backward(data[torch.randint(0, len(data), (batch,))], loss_fn)
        optimizer.step()
        optimizer.zero_grad()

    train()
    threading.Thread(target=obey, args=(elastic,), daemon=True).start()
    while True:
        train()


if __name__ == "__main__":
    main()
