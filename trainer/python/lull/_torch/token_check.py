"""May the tail run in chunks of tokens, and how far does one look ahead? Asked once, of one sample and of two.

What arrives at the blocks' outputs, and at each parameter behind them, from all tokens at once must be what arrives
from two parts of them. A wrong count, a loss that compares tokens and a head that mixes them show there, also in a
model that says the same of every token. What begins at zero (a bias by position, a second head) shows at its
parameters only.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal
from lull._torch.batch import anew
from lull._torch.cuts import Cut, Span
from lull._torch.leaves import accumulates, leaves_of, nodes_of
from lull._torch.passes import LossFn, Passes, check_loss
from lull._torch.shares import Share
from lull._torch.slots import Table
from lull._torch.tail import Answer, Tail, is_constant
from lull._torch.undo import Forwards

_LEAST: Final = 1e-5
"""The least difference, as a share of a tensor's largest gradient, that is none of rounding's: float32 adds up a
thousand numbers to a few in a million."""

_ROUNDINGS: Final = 4.0
"""A difference of so many times what rounding was seen to make is none of rounding's. Two parts of a few samples
differed from the whole by 1.4 times that at most, in float32, under bfloat16 autocast and in bfloat16."""

_FACTOR: Final = 0.7
"""The loss is multiplied by this, and its gradient divided by it, to see what rounding makes: no power of two, so that
each number on the way is rounded otherwise."""


def unlike_tokens(what: str) -> RuntimeRefusal:
    """The refusal of a model or loss_fn whose tail does not separate over tokens."""
    return RuntimeRefusal(
        f"elastic.backward tail_tokens: {what}, want a loss that adds up over tokens or divides by the sum of weights= "
        "by token, and a head that takes each token by itself; attach with tail_tokens=0; the microbatch is undone"
    )


class _Arrived(NamedTuple):
    """The gradient of a few samples' loss."""

    outputs: list[torch.Tensor]
    """At each tensor that blocks gave."""
    params: dict[torch.nn.Parameter, torch.Tensor]
    """At each parameter that the loss reaches behind them."""


class TokenCheck:
    """A few samples whose tail is run whole and in parts. `share` is that of their loss."""

    def __init__(
        self, job: Passes, tail: Tail, table: Table, loss_fn: LossFn, few: Any, size: int, share: Share
    ) -> None:
        self._job, self._tail, self._table = job, tail, table
        self._loss_fn, self._few, self._size, self._share = loss_fn, few, size, share
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
        if not all(bool(g.isfinite().all()) for g in (*whole.outputs, *whole.params.values())):
            raise unlike_tokens("the gradient of a few samples is not finite")
        ends = _ends(whole.outputs)
        if not ends:
            return None
        rounded = self._gradients([all_of_them], _FACTOR)
        shown = all_of_them.columns > all_of_them.length  # a batch with more tokens shows them anyway
        for ahead in (0,) if shown else (0, 1):
            if all(_same(whole, self._gradients(_halves(all_of_them, end, ahead)), rounded) for end in ends):
                self._refuse_unlike_chunks(whole, rounded, tail.spans_of(all_of_them, ahead))
                return ahead
        raise unlike_tokens(
            f"the gradient of {all_of_them.length} tokens is not that of the first {ends[0]} and the others"
        )

    def _refuse_unlike_chunks(self, whole: _Arrived, rounded: _Arrived, spans: list[Span]) -> None:
        """Cut as they will be: weights may be right at both ends and wrong in between. That shows at the blocks'
        outputs; a 16-bit parameter's sum over all tokens may itself be far from right, and another in many parts."""
        if len(spans) > 1 and not _same(whole, self._gradients(spans)._replace(params=whole.params), rounded):
            raise unlike_tokens(
                f"the gradient of {spans[0].length} tokens is not that of {len(spans)} chunks of {spans[0].last}"
            )

    def _gradients(self, spans: list[Span], factor: float = 1.0) -> _Arrived:
        """What the chunks of these tokens add up to, by way of their loss times `factor`."""
        found = _Arrived([_nothing(output) for output in self._tail.outputs()], {})
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
            self._add(found, loss * factor, cut, weight / factor)
        return found

    def _add(self, found: _Arrived, loss: torch.Tensor, cut: Cut, weight: float) -> None:
        given = self._tail.given()
        params = [leaf for leaf in leaves_of(loss) if isinstance(leaf, torch.nn.Parameter)]
        arrived = torch.autograd.grad(loss, [*given, *params], allow_unused=True)
        for whole, gradient in zip(found.outputs, arrived, strict=False):
            place = cut.rows(whole)
            if gradient is not None and place is not None:
                place.add_(gradient, alpha=weight)
        for param, gradient in zip(params, arrived[len(given) :], strict=True):
            if gradient is not None:
                if param not in found.params:
                    found.params[param] = _nothing(param)
                found.params[param].add_(gradient, alpha=weight)

    def _look(self, answer: Answer, inputs: Any, cut: Cut) -> None:
        first, now = pytree.tree_leaves(answer.inputs), pytree.tree_leaves(inputs)
        for a, b in zip(first, now, strict=False):
            if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or b.grad_fn is None:
                continue
            part = cut.rows(a)
            if part is None or part.shape != b.shape or not torch.equal(part, b):
                self._before.update(node for node in nodes_of(b) if not accumulates(node))


def _nothing(tensor: torch.Tensor) -> torch.Tensor:
    """To add up gradients in; 16 bits would lose small ones."""
    return torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32), requires_grad=False)


def _same(whole: _Arrived, parts: _Arrived, rounded: _Arrived) -> bool:
    """Whether they differ by no more than rounding, each tensor by its own measure."""
    outputs = zip(whole.outputs, parts.outputs, rounded.outputs, strict=True)
    params = whole.params.keys() | parts.params.keys()
    of_params = ((whole.params.get(p), parts.params.get(p), rounded.params.get(p)) for p in params)
    return all(_alike(a, b, again) for a, b, again in (*outputs, *of_params))


def _alike(whole: torch.Tensor | None, parts: torch.Tensor | None, rounded: torch.Tensor | None) -> bool:
    """Of one tensor; None where the loss does not reach it, which is a gradient of zero."""
    if whole is None or rounded is None:
        return parts is None or not _largest(parts)
    if parts is None:
        return not _largest(whole)
    return _largest(parts - whole) <= max(_LEAST * _largest(whole), _ROUNDINGS * _largest(rounded - whole))


def _largest(gradient: torch.Tensor) -> float:
    return float(gradient.abs().max()) if gradient.numel() else 0.0


def _ends(whole: list[torch.Tensor]) -> list[int]:
    """Where to divide: behind the first and the last token that counts and has a neighbour that does. A part with few
    tokens shows a wrong count best."""
    counts = torch.stack([(g != 0).movedim(1, 0).flatten(1).any(1) for g in whole]).any(0)
    places = (counts[:-1] & counts[1:]).nonzero().flatten().tolist()
    return [*dict.fromkeys((places[0] + 1, places[-1] + 1))] if places else []


def _halves(span: Span, end: int, ahead: int) -> list[Span]:
    return [span._replace(last=end, ahead=ahead), span._replace(first=end, ahead=ahead)]
