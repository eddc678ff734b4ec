"""A chunk of a microbatch's tail: some samples, and some tokens of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lull._torch.batch import part
from lull._torch.shares import Share


class Span(NamedTuple):
    """Tokens of each sample, as they are counted in what blocks give."""

    first: int
    last: int
    """The last of its own, + 1."""
    ahead: int
    """How many more it is shown, which say nothing of their own there: labels of the last one."""
    length: int
    """Of what blocks give."""
    columns: int
    """Of the batch; those that blocks never see (a last label) come at its end."""

    @property
    def end(self) -> int:
        """The last that it is shown, + 1."""
        return min(self.last + self.ahead, self.length)


class Cut(NamedTuple):
    """Samples start to stop of `size`, all their tokens or those of a span."""

    start: int
    stop: int
    size: int
    span: Span | None = None

    def of(self, batch: Any) -> Any:
        """Its part of the microbatch's batch."""
        span = self.span
        if span is None:
            return part(batch, self.start, self.stop, self.size)
        tokens = (span.first, span.end + span.columns - span.length, span.columns)
        return part(batch, self.start, self.stop, self.size, tokens)

    def share(self, share: Share) -> float:
        """The factor of its loss."""
        span = self.span
        some = span is not None and (span.first, span.last) != (0, span.length)
        return share(self.start, self.stop, (span.first, span.last) if span is not None and some else None)

    def rows(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """Its part of a tensor that a block gave or got, None where that has no such part."""
        if leaf.dim() == 0 or leaf.shape[0] != self.size:
            return None
        rows = leaf[self.start : self.stop]
        if self.span is None:
            return rows
        if leaf.dim() < 2 or leaf.shape[1] != self.span.length:
            return None
        return rows[:, self.span.first : self.span.end]

    def given(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The same as a tensor of its own, laid out as a block would: a head may call view() on it."""
        rows = self.rows(leaf)
        return rows if rows is None or self.span is None else rows.contiguous()

    def what(self) -> str:
        """What it is a part of, for people."""
        return f"{self.size} samples" + ("" if self.span is None else f" of {self.span.length} tokens")
