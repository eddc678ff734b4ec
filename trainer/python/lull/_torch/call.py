"""What elastic.backward was called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lull._torch.passes import LossFn


@dataclass(frozen=True)
class Call:
    """One call, its weights read."""

    batch: Any
    loss_fn: LossFn
    reduction: str
    weights: torch.Tensor | None
    """By sample."""
    tokens: torch.Tensor | None
    """By sample and token, where they were given so."""
    scaler: Any
    shared: bool
