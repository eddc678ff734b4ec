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

    @property
    def weighed(self) -> int | None:
        """Tokens of each sample that weights have a number for."""
        return None if self.tokens is None else int(self.tokens.shape[1])
