"""Which parameters a batch trains: the model's, and those that only the optimizer knows (a learnable temperature)."""

from __future__ import annotations

import torch


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Each parameter that wants a gradient, once, the model's first."""
    every = [*model.parameters(), *(p for group in optimizer.param_groups for p in group["params"])]
    return [p for p in dict.fromkeys(every) if p.requires_grad]
