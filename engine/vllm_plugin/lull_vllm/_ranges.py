"""From KV tensors to the exact pages of their blocks. Pure: addresses are plain numbers.

A tensor is told by its base address, the number of blocks along its first dimension, the distance
of two blocks and the bytes that one block spans. Tensors whose blocks lie inside one another's
distance (layers interleaved within a block) form one group; a group's slot holds bytes of one
block only, which is what makes it safe to give a slot's pages back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ._errors import LayoutError


@dataclass(frozen=True)
class TensorLayout:
    """One KV tensor: bytes, along its block dimension."""

    base: int
    blocks: int
    pitch: int
    span: int


@dataclass(frozen=True)
class Group:
    """Slots of equal pitch; the first extent bytes of a slot belong to its block."""

    base: int
    pitch: int
    extent: int


@dataclass(frozen=True)
class Run:
    """Consecutive blocks to give back.

    left and right say that the neighbour on that side is given back too and stays out until this
    run is done, so that the page that both share may go.
    """

    first: int
    count: int
    left: bool = False
    right: bool = False


@dataclass(frozen=True)
class Layout:
    """All slots of a pool of blocks on one rank."""

    groups: tuple[Group, ...]
    blocks: int
    page: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all its groups."""
        return sum(group.extent for group in self.groups)

    def pages_of(self, runs: Iterable[Run]) -> list[tuple[int, int]]:
        """Returns (address, bytes) of the whole pages that belong to the runs alone."""
        found: list[tuple[int, int]] = []
        for run in runs:
            if run.first < 0 or run.count < 1 or run.first + run.count > self.blocks:
                raise LayoutError(
                    f"run of {run.count} blocks from {run.first}: the pool has {self.blocks}"
                )
            for group in self.groups:
                found.extend(self._pages_in(group, run))
        return found

    def _pages_in(self, group: Group, run: Run) -> Iterable[tuple[int, int]]:
        if group.extent < group.pitch:  # the gaps between slots are not ours
            for block in range(run.first, run.first + run.count):
                start = group.base + block * group.pitch
                yield from _whole(_up(start, self.page), _down(start + group.extent, self.page))
            return
        start = group.base + run.first * group.pitch
        end = start + run.count * group.pitch
        low = _down(start, self.page) if run.left else _up(start, self.page)
        high = _up(end, self.page) if run.right else _down(end, self.page)
        yield from _whole(low, high)


def layout_of(tensors: Sequence[TensorLayout], blocks: int, page: int) -> Layout:
    """Groups the tensors of a pool of so many blocks, or says why that cannot be done."""
    if not tensors:
        raise LayoutError("no KV tensors")
    distinct = sorted({_fold(t, blocks) for t in tensors}, key=lambda t: (t.base, t.span))
    groups: list[Group] = []
    for tensor in distinct:
        if tensor.span > tensor.pitch:
            raise LayoutError(
                f"a block spans {tensor.span} bytes but the next begins after {tensor.pitch}"
            )
        if groups and _joins(groups[-1], tensor):
            last = groups[-1]
            extent = max(last.extent, tensor.base - last.base + tensor.span)
            groups[-1] = Group(last.base, last.pitch, extent)
        else:
            groups.append(Group(tensor.base, tensor.pitch, tensor.span))
    for before, after in itertools.pairwise(groups):
        end = before.base + (blocks - 1) * before.pitch + before.extent
        if end > after.base:
            raise LayoutError(f"tensors at {before.base:#x} and {after.base:#x} overlap")
    small = min(group.pitch for group in groups)
    if small < page:
        raise LayoutError(f"a block is {small} bytes a layer, less than a page of {page}")
    return Layout(tuple(groups), blocks, page)


def _fold(tensor: TensorLayout, blocks: int) -> TensorLayout:
    """Joins kernel blocks: an attention kernel may split a block into several rows."""
    if tensor.blocks == blocks:
        return tensor
    if tensor.blocks < blocks or tensor.blocks % blocks:
        raise LayoutError(f"a tensor has {tensor.blocks} rows for {blocks} blocks")
    rows = tensor.blocks // blocks
    span = (rows - 1) * tensor.pitch + tensor.span
    return TensorLayout(tensor.base, blocks, tensor.pitch * rows, span)


def _joins(group: Group, tensor: TensorLayout) -> bool:
    inside = tensor.base - group.base + tensor.span <= group.pitch
    return tensor.pitch == group.pitch and inside


def _whole(low: int, high: int) -> Iterable[tuple[int, int]]:
    if high > low:
        yield low, high - low


def _up(address: int, page: int) -> int:
    return (address + page - 1) // page * page


def _down(address: int, page: int) -> int:
    return address // page * page


def runs_of(blocks: Iterable[int], gone: Sequence[int]) -> list[Run]:
    """Returns the blocks as runs; gone[b] is true where a neighbour is out and stays out."""
    runs: list[Run] = []
    ordered = sorted(blocks)
    at = 0
    while at < len(ordered):
        first = ordered[at]
        count = 1
        while at + count < len(ordered) and ordered[at + count] == first + count:
            count += 1
        after = first + count
        left = first > 0 and bool(gone[first - 1])
        right = after < len(gone) and bool(gone[after])
        runs.append(Run(first, count, left, right))
        at += count
    return runs
