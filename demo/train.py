"""The demo's training job: a small byte-level GPT on Moby-Dick, in plain PyTorch.

Run under Lull (`python -m lull.run demo/train.py`) it gives activation memory back when the sidecar asks;
the lines that differ from a script without Lull end in `# lull`. Without a sidecar it trains all the same.
`--curve` trains under a few fixed budgets instead and logs the speed under each.

The log (--log) is JSON lines: `ready` once, then `step` per optimizer step, or `curve` per budget. `ready` and
`step` carry the floor in force.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import lull  # lull

TEXT = Path(__file__).parent / "text" / "moby-dick.txt"
CONTEXT, WIDTH, HEADS, LAYERS, VOCABULARY = 128, 256, 4, 4, 256
CURVE_MIB, CURVE_S, CURVE_WARM, CURVE_BATCH = (16, 48, 144, 320), 1.5, 16, 32
Batch = tuple[torch.Tensor, torch.Tensor]
LossFn = Callable[[Batch], torch.Tensor]
NextBatch = Callable[[int], Batch]


class Block(nn.Module):
    """One transformer block: causal attention and a feed-forward layer, normalised first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class GPT(nn.Module):
    """A byte-level language model; a token is a byte."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Log:
    """JSON lines, on stdout and in a file where one is named."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None

    def write(self, kind: str, **fields: object) -> None:
        line = json.dumps({"t_unix_us": time.time_ns() // 1000, "kind": kind, **fields})
        print(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def sample(text: torch.Tensor, count: int, rng: torch.Generator) -> Batch:
    """`count` random windows of the text and the same windows one byte later."""
    starts = torch.randint(len(text) - CONTEXT - 1, (count, 1), generator=rng)
    windows = text[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def log_ready(elastic: lull.Elastic, log: Log) -> None:
    """What the process had before it took memory, and the floor that the first backward measured."""
    log.write("ready", pid=os.getpid(), baseline_bytes=elastic.baseline, floor_bytes=floor_bytes(elastic))


def floor_bytes(elastic: lull.Elastic) -> int:
    """What the job cannot give back now: the sidecar may grant a higher floor between batches."""
    return elastic.floor.bytes if elastic.floor else 0


def measure_curve(
    model: GPT, optimizer: torch.optim.Optimizer, loss_fn: LossFn, next_batch: NextBatch, log: Log
) -> None:
    """Samples/s under a few fixed budgets, each after a warm-up that teaches the memory model."""
    for mib in CURVE_MIB:
        elastic = lull.attach(model, optimizer, budget=mib << 20, socket="")
        elastic.backward(next_batch(CURVE_WARM), loss_fn)
        optimizer.step()
        optimizer.zero_grad()
        if mib == CURVE_MIB[0]:
            log_ready(elastic, log)
        began, samples = time.monotonic(), 0
        while time.monotonic() - began < CURVE_S:
            elastic.backward(next_batch(CURVE_BATCH), loss_fn)
            optimizer.step()
            optimizer.zero_grad()
            samples += CURVE_BATCH
        rate = samples / (time.monotonic() - began)
        log.write("curve", budget_bytes=mib << 20, samples_per_s=rate, samples=samples)
        elastic.close()


def main() -> None:
    """Trains until it is stopped, or measures the curve and ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64, help="samples per optimizer step")
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps; 0 trains until stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", default="", help="file for JSON lines")
    parser.add_argument("--curve", action="store_true", help="measure speed under a few budgets and end")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = torch.Generator().manual_seed(args.seed)
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_fn(batch: Batch) -> torch.Tensor:
        tokens, targets = batch
        return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    log = Log(args.log)
    if args.curve:
        measure_curve(model, optimizer, loss_fn, lambda count: sample(text, count, rng), log)
        return
    elastic = lull.attach(model, optimizer)  # lull
    samples, step = 0, 0
    while args.steps == 0 or step < args.steps:
        began = time.monotonic()
        loss = elastic.backward(sample(text, args.batch, rng), loss_fn)  # lull
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            log_ready(elastic, log)
        step, samples = step + 1, samples + args.batch
        took, floor = time.monotonic() - began, floor_bytes(elastic)
        log.write("step", step=step, loss=float(loss), samples=samples, seconds=took, floor_bytes=floor)


if __name__ == "__main__":
    main()
