"""One training run of the convergence benchmark: python -m lull.run job.py MODEL SEED EPOCHS.

The data are scikit-learn's digits (1,797 images of 8 x 8, part of the package), 1,437 to train on and 360 to test on.
Prints one line of JSON: the test accuracy after each epoch, a digest of the weights, and what happened on the way.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import lull

BATCH, TRAIN = 128, 1437


class Residual(nn.Module):
    """Two convolutions with BatchNorm, beside their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.first(x)))
        out: torch.Tensor = functional.relu(x + self.norm2(self.second(y)))
        return out


class Cnn(nn.Module):
    """BatchNorm makes what a microbatch computes depend on who else is in it: the hard case."""

    def __init__(self, width: int = 24, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.stem(x.view(-1, 1, 8, 8)))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean((2, 3)))
        return out


class Encoder(nn.Module):
    """A transformer over the image's 16 squares of 2 x 2 pixels, with dropout."""

    def __init__(self, width: int = 48, blocks: int = 2) -> None:
        super().__init__()
        self.square = nn.Conv2d(1, width, 2, stride=2)
        self.place = nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.square(x.view(-1, 1, 8, 8)).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean(1))
        return out


RATES = {"cnn": 1e-2, "transformer": 6e-3}
"""The largest learning rate of a run, chosen without Lull."""

MODELS: dict[str, type[nn.Module]] = {"cnn": Cnn, "transformer": Encoder}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Images, 0 to 1, and labels, in an order that does not depend on the seed."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    return torch.tensor(bunch.data, dtype=torch.float32)[order] / 16, torch.tensor(bunch.target)[order]


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of the images that are told right."""
    model.eval()
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    model.train()
    return right


def digest(model: nn.Module) -> str:
    """Of every weight and buffer: equal digests are equal bits."""
    sum = hashlib.sha256()
    for value in model.state_dict().values():
        sum.update(value.numpy().tobytes())
    return sum.hexdigest()[:16]


def main() -> None:
    """Trains and reports."""
    name, seed, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y = digits()
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    steps = epochs * -(-TRAIN // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATES[name], total_steps=steps)
    # BatchNorm does not separate over samples: that microbatches change it is accepted here, and measured.
    elastic = lull.attach(model, optimizer, partition="trusted" if name == "cnn" else "checked")
    shuffle = torch.Generator().manual_seed(seed)
    curve, batches = [], 0
    for _ in range(epochs):
        for picked in torch.split(torch.randperm(TRAIN, generator=shuffle), BATCH):
            batch = (x[picked], y[picked])
            elastic.backward(batch, lambda b: functional.cross_entropy(model(b[0]), b[1]))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            batches += 1
        curve.append(round(accuracy(model, x[TRAIN:], y[TRAIN:]), 4))
    stats = elastic.stats
    line = {
        "accuracy": curve,
        "digest": digest(model),
        "batches": batches,
        "dropped": stats.dropped,
        "recomputed": stats.recomputed,
        "discards": stats.discards,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
