"""Splits a batch along dimension 0, whatever tuples, lists and dicts its tensors lie in."""

from __future__ import annotations

from collections.abc import Sequence
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


def spread_copy(batch: Any, at: Sequence[int], size: int) -> Any:
    """Copies of the samples at these places, as sample_copy makes them."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        rows = leaf.dim() > 0 and leaf.shape[0] == size
        found = leaf.detach()
        found = found.index_select(0, torch.tensor(at, device=leaf.device)) if rows else found.clone()
        return found.requires_grad_(leaf.requires_grad)

    return pytree.tree_map(copied, batch)


def sample_copy(batch: Any, stop: int, size: int) -> Any:
    """Copies of the first samples, to try loss_fn on: what it does to them does not reach the user's batch."""

    def copied(leaf: Any) -> Any:
        return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(copied, part(batch, 0, stop, size))


def refuse_edits(copy: Any) -> None:
    """Raises RuntimeRefusal when a sample_copy was edited: a microbatch that is undone would be edited twice."""
    if any(isinstance(leaf, torch.Tensor) and leaf._version for leaf in pytree.tree_leaves(copy)):
        raise RuntimeRefusal(
            "elastic.backward loss_fn: it edits its batch in place, which a microbatch that is undone would see "
            "twice; want a copy edited instead (x = x * 2); nothing was trained"
        )
