"""Splits a batch along dimension 0, whatever tuples, lists and dicts its tensors lie in."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal


def batch_size(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor that has a dimension."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            if leaf.shape[0] == 0:
                break
            return int(leaf.shape[0])
    raise RuntimeRefusal(
        "elastic.backward batch: no tensor with samples along dimension 0, want at least one; nothing was trained"
    )


def part(batch: Any, start: int, stop: int, size: int) -> Any:
    """Samples start to stop: every tensor with `size` rows is cut, everything else passes along."""

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size:
            return leaf[start:stop]
        return leaf

    return pytree.tree_map(cut, batch)
