"""Splits a batch along dimension 0, whatever tuples, lists, mappings and dataclasses its tensors lie in."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal


class Whole:
    """A tensor of a batch that belongs to no sample, though its first dimension may be as long as the batch. loss_fn
    gets the tensor itself."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def whole(tensor: torch.Tensor) -> Any:
    """Marks a tensor of a batch as belonging to no sample (class weights, a table of positions): every microbatch gets
    all of it. Without the mark it is cut where its first dimension has the batch's length."""
    if not isinstance(tensor, torch.Tensor):
        raise RuntimeRefusal(f"lull.whole: got a {type(tensor).__name__}, want a tensor; nothing was trained")
    return Whole(tensor)


def _inside(leaf: Any) -> dict[Any, Any] | None:
    """What lies in a mapping or dataclass that PyTorch takes for a leaf; None for a true leaf."""
    if isinstance(leaf, Mapping):
        return dict(leaf)
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, torch.nn.Module)):
        return {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if hasattr(leaf, f.name)}
    return None


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors that lie in a batch."""
    for leaf in pytree.tree_leaves(tree):
        inside = _inside(leaf)
        if inside is not None:
            yield from tensors_in(list(inside.values()))
        elif isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Whole):
            yield leaf.tensor


def _map(change: Callable[[Any], Any], tree: Any) -> Any:
    """The batch with its leaves changed. A mapping or dataclass in which nothing changes stays itself."""

    def opened(leaf: Any) -> Any:
        inside = _inside(leaf)
        if inside is None:
            return change(leaf)
        made = {key: _map(change, value) for key, value in inside.items()}
        return leaf if all(made[key] is value for key, value in inside.items()) else _again(leaf, made)

    return pytree.tree_map(opened, tree)


def _again(old: Any, values: dict[Any, Any]) -> Any:
    """A copy with these values: nothing of the user's runs again (a __post_init__ would see a part as if it were the
    whole), and what else the object has stays. A mapping that cannot be written becomes a plain dict."""
    if isinstance(old, Mapping) and not isinstance(old, MutableMapping):
        return values
    try:
        new = copy(old)
        if isinstance(new, UserDict):
            new.data = values
        elif isinstance(new, MutableMapping):
            for key, value in values.items():
                new[key] = value
        else:
            for name, value in values.items():
                object.__setattr__(new, name, value)
    except Exception as e:
        raise RuntimeRefusal(
            f"elastic.backward batch: {type(old).__name__} cannot be copied with other values ({type(e).__name__}: "
            f"{e}), want what copy.copy copies, or a dict; nothing was trained"
        ) from e
    return new


def _wholes(tree: Any) -> Iterator[Whole]:
    for leaf in pytree.tree_leaves(tree):
        inside = _inside(leaf)
        if inside is not None:
            yield from _wholes(list(inside.values()))
        elif isinstance(leaf, Whole):
            yield leaf


def batch_size(batch: Any) -> int:
    """Samples in a batch: the length of its first tensor that has a dimension."""
    wholes = {id(w.tensor) for w in _wholes(batch)}
    for leaf in tensors_in(batch):
        if leaf.dim() > 0 and id(leaf) not in wholes:
            if leaf.shape[0] == 0:
                break
            return int(leaf.shape[0])
    raise RuntimeRefusal(
        f"elastic.backward batch: no tensor with samples along dimension 0 in a {type(batch).__name__}, want at least "
        "one, in tuples, lists, mappings or dataclasses; nothing was trained"
    )


def part(batch: Any, start: int, stop: int, size: int, tokens: tuple[int, int, int] | None = None) -> Any:
    """Samples start to stop: every tensor with `size` rows is cut, but for those marked as whole; everything else
    passes along. `tokens` (first, last + 1, of how many) cuts those that have so many along dimension 1 as well, and
    those parts lie in memory as the whole may (a loss calls labels.view(-1))."""

    def cut(leaf: Any) -> Any:
        if isinstance(leaf, Whole):
            return leaf.tensor
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size:
            rows = leaf[start:stop]
            wide = tokens is not None and leaf.dim() > 1 and leaf.shape[1] == tokens[2]
            return rows[:, tokens[0] : tokens[1]].contiguous() if tokens is not None and wide else rows
        return leaf

    return _map(cut, batch)


def width(batch: Any, size: int) -> int:
    """Tokens of each sample: the second dimension of the first tensor with samples that has one; 0 without."""
    wholes = {id(w.tensor) for w in _wholes(batch)}
    return next(
        (int(t.shape[1]) for t in tensors_in(batch) if _is_rows(t, size) and t.dim() > 1 and id(t) not in wholes), 0
    )


def anew(batch: Any) -> Any:
    """The same tensors in other containers: a loss_fn that takes things out of its batch finds them the next time."""
    size = batch_size(batch)
    return part(batch, 0, size, size)


def rows_of(batch: Any, size: int) -> int:
    """How many tensors of a batch are cut."""
    count = 0

    def look(leaf: Any) -> Any:
        nonlocal count
        count += _is_rows(leaf, size)
        return leaf

    _map(look, batch)
    return count


def spread_copy(batch: Any, at: Sequence[int], size: int, *, keep: int | None = None) -> Any:
    """Copies of the samples at these places, as sample_copy makes them; the `keep`-th tensor with rows stays whole."""
    count = -1

    def copied(leaf: Any) -> Any:
        nonlocal count
        if isinstance(leaf, Whole):
            return Whole(_copy(leaf.tensor))
        if not isinstance(leaf, torch.Tensor):
            return leaf
        count += _is_rows(leaf, size)
        if not _is_rows(leaf, size) or count == keep:
            return Whole(_copy(leaf)) if leaf.dim() > 0 else _copy(leaf)  # it may have as many rows as are copied
        found = leaf.detach().index_select(0, torch.tensor(at, device=leaf.device))
        return found.requires_grad_(leaf.requires_grad)

    return _map(copied, batch)


def _is_rows(leaf: Any, size: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == size


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def sample_copy(batch: Any, stop: int, size: int) -> Any:
    """Copies of the first samples, to try loss_fn on (by part or anew): what it does to them does not reach the user's
    batch, and what belongs to no sample is whole."""
    return spread_copy(batch, range(stop), size)


def refuse_edits(copy: Any) -> None:
    """Raises RuntimeRefusal when a sample_copy was edited: a microbatch that is undone would be edited twice."""
    if any(leaf._version for leaf in tensors_in(copy)):
        raise RuntimeRefusal(
            "elastic.backward loss_fn: it edits its batch in place, which a microbatch that is undone would see "
            "twice; want a copy edited instead (x = x * 2); nothing was trained"
        )
