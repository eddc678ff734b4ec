"""May the tail run in chunks of tokens, and how far does one look ahead? Asked once, of one sample and of two.

What arrives at the blocks' outputs from all tokens at once must be what arrives from two parts of them. A wrong count,
a loss that compares tokens and a head that mixes them show there, also in a model that says the same of every token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal
from lull._torch.batch import anew
from lull._torch.cuts import Cut, Span
from lull._torch.leaves import accumulates, nodes_of
from lull._torch.passes import LossFn, Passes, check_loss
from lull._torch.shares import Share
from lull._torch.slots import Table
from lull._torch.tail import Answer, Tail, is_constant
from lull._torch.undo import Forwards


def unlike_tokens(what: str) -> RuntimeRefusal:
    """The refusal of a model or loss_fn whose tail does not separate over tokens."""
    return RuntimeRefusal(
        f"elastic.backward tail_tokens: {what}, want a loss that adds up over tokens or divides by the sum of weights= "
        "by token, and a head that takes each token by itself; attach with tail_tokens=0; the microbatch is undone"
    )


class TokenCheck:
    """A few samples whose tail is run whole and in parts. `share` is that of their loss, `most` the relative difference
    that is taken for rounding."""

    def __init__(
        self, job: Passes, tail: Tail, table: Table, loss_fn: LossFn, few: Any, size: int, share: Share, most: float
    ) -> None:
        self._job, self._tail, self._table = job, tail, table
        self._loss_fn, self._few, self._size = loss_fn, few, size
        self._share, self._most = share, most
        self._before: set[Any] = set()
        """Nodes of what blocks got in a chunk, where that differs from what they got in the whole."""

    def ahead(self) -> int | None:
        """How many tokens a chunk is shown besides its own; None where these samples say nothing, since no two tokens
        beside each other count. Raises RuntimeRefusal where no number makes parts of the whole."""
        tail = self._tail
        forwards = Forwards(self._job.model)
        with self._job.hooks.outer(self._table):
            tail.trunk(self._loss_fn, anew(self._few), self._look)
        forwards.put_back()
        all_of_them = tail.whole(self._few, self._size)
        if all_of_them is None:
            return None
        whole = self._gradients([all_of_them])
        if not all(bool(g.isfinite().all()) for g in whole):
            raise unlike_tokens("the gradient of a few samples is not finite")
        ends = _ends(whole)
        if not ends:
            return None
        tries = (
            (0,) if all_of_them.columns > all_of_them.length else (0, 1)
        )  # a batch with more tokens shows them anyway
        for ahead in tries:
            if all(self._same(whole, self._gradients(_halves(all_of_them, end, ahead))) for end in ends):
                return ahead
        raise unlike_tokens(
            f"the gradient of {all_of_them.length} tokens is not that of the first {ends[0]} and the others"
        )

    def _gradients(self, spans: list[Span]) -> list[torch.Tensor]:
        """What arrives at each tensor that blocks gave."""
        found = [torch.zeros_like(output, requires_grad=False) for output in self._tail.outputs()]
        for span in spans:
            cut = Cut(0, self._size, self._size, span)
            weight = cut.share(self._share)
            if weight == 0.0:
                continue
            with self._job.hooks.outer(self._table):
                loss = self._tail.chunk(self._job.segments, self._loss_fn, cut.of(self._few), cut)
            self._job.hooks.end_forward()
            if is_constant(loss):
                continue
            check_loss(loss)
            if not self._before.isdisjoint(nodes_of(loss)):
                raise unlike_tokens(
                    "what comes before its blocks reaches the loss around them, and is another in a part"
                )
            arrived = torch.autograd.grad(loss, self._tail.given(), allow_unused=True)
            for whole, gradient in zip(found, arrived, strict=True):
                place = cut.rows(whole)
                if gradient is not None and place is not None:
                    place.add_(gradient, alpha=weight)
        return found

    def _look(self, answer: Answer, inputs: Any, cut: Cut) -> None:
        first, now = pytree.tree_leaves(answer.inputs), pytree.tree_leaves(inputs)
        for a, b in zip(first, now, strict=False):
            if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or b.grad_fn is None:
                continue
            part = cut.rows(a)
            if part is None or part.shape != b.shape or not torch.equal(part, b):
                self._before.update(node for node in nodes_of(b) if not accumulates(node))

    def _same(self, whole: list[torch.Tensor], parts: list[torch.Tensor]) -> bool:
        scale = max(float(g.abs().max()) for g in whole)
        return all(float((a - b).abs().max()) <= self._most * scale for a, b in zip(whole, parts, strict=True))


def _ends(whole: list[torch.Tensor]) -> list[int]:
    """Where to divide: behind the first and the last token that counts and has a neighbour that does. A part with few
    tokens shows a wrong count best."""
    counts = torch.stack([(g != 0).movedim(1, 0).flatten(1).any(1) for g in whole]).any(0)
    places = (counts[:-1] & counts[1:]).nonzero().flatten().tolist()
    return [*dict.fromkeys((places[0] + 1, places[-1] + 1))] if places else []


def _halves(span: Span, end: int, ahead: int) -> list[Span]:
    return [span._replace(last=end, ahead=ahead), span._replace(first=end, ahead=ahead)]
