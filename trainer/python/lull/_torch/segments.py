"""Finds what a model is made of: its repeated blocks, and the modules beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn as nn

from lull._errors import RuntimeRefusal


@dataclass(frozen=True)
class Segment:
    """A module whose saved tensors can be emptied and computed again."""

    name: str
    module: nn.Module
    block: bool
    """One of the repeated blocks, rather than a module beside them."""


def find_segments(model: nn.Module, blocks: Sequence[nn.Module] | None) -> list[Segment]:
    """The blocks (given, or the longest row of like children) and the modules beside them.

    Segments never overlap: of a module and its descendant only the outer one counts. Of a row from which
    blocks were given, those of the same type that were not given are left out.
    """
    names = {id(module): name or "model" for name, module in model.named_modules()}
    chosen = list(blocks) if blocks is not None else _longest_row(model)
    for block in chosen:
        if id(block) not in names:
            raise RuntimeRefusal(
                f"attach blocks: {type(block).__name__} is no part of the model, want its own modules; "
                "nothing is attached"
            )
    found = [Segment(names[id(m)], m, True) for m in dict.fromkeys(chosen)]
    inside = {id(d) for m in chosen for d in m.modules()}
    holders = {id(m) for m in model.modules() if any(id(d) in inside for d in m.modules())}
    given = {id(m): type(m) for m in chosen} if blocks is not None else {}
    beside: list[Segment] = []
    for holder in model.modules():
        if id(holder) in holders and id(holder) not in inside:
            row = isinstance(holder, nn.ModuleList | nn.Sequential)
            unnamed = {given[id(c)] for c in holder.children() if id(c) in given} if row else set()
            beside += [
                Segment(names[id(c)], c, False)
                for c in holder.children()
                if id(c) not in holders and type(c) not in unnamed and any(True for _ in c.parameters())
            ]
    return found + beside


def _longest_row(model: nn.Module) -> list[nn.Module]:
    """The children of the longest ModuleList or Sequential of like modules with parameters."""
    best: list[nn.Module] = []
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        rows: dict[type[nn.Module], list[nn.Module]] = {}
        for child in module:
            if any(True for _ in child.parameters()):
                rows.setdefault(type(child), []).append(child)
        row = max(rows.values(), key=_size, default=[])
        if len(row) >= 2 and _size(row) > _size(best):
            best = row
    return best


def _size(row: list[nn.Module]) -> int:
    """Leaf modules last: a row of Linear layers inside a block is no row of blocks."""
    inner = sum(1 for m in row for _ in m.modules())
    return len(row) * 1_000 + inner if inner > len(row) else len(row)
