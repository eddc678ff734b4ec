"""A training job with two DataLoader workers, made elastic: what the test kills.

Its pieces are those of a user's script; LULL_SOCKET and the like come from the environment.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import lull

WIDTH, SAMPLES = 1024, 64


class Noise(Dataset[torch.Tensor]):
    """Random rows, the same for the same index."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(128, WIDTH, generator=torch.Generator().manual_seed(index))


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    elastic = lull.attach(model, optimizer)

    def loss_fn(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean(dim=(1, 2)).mean()
        return loss

    while True:
        for batch in DataLoader(Noise(), batch_size=SAMPLES, num_workers=2, multiprocessing_context="fork"):
            elastic.backward(batch, loss_fn)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
