"""The tail of a forward pass: what comes after the last block until the loss, in chunks of some samples and tokens.

In a language model the logits are the largest activation by far, and only the tail has them. With attach(tail=n) a
microbatch's forward pass ends at its last block; then loss_fn runs again on n samples at a time, with each block
answering what it answered before, and each chunk's backward pass follows at once. What arrives at the blocks' outputs
is collected there, and one backward pass goes through the blocks. So the tail is never held between forward and
backward, and its peak is that of n samples. With attach(tail_tokens=m) a chunk has m tokens of each (cuts.py).

The gradient is the same sum in another order, so it is part of the partition: always on or always off, whatever
orders come. What loss_fn does before its last block it does once more for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from lull._errors import RuntimeRefusal
from lull._torch.batch import width
from lull._torch.cuts import Cut, Span
from lull._torch.segments import Segment


class Ended(BaseException):
    """Ends a forward pass after its last block. Not an Exception, so that the model's own handlers let it pass."""


def unlike(what: str) -> RuntimeRefusal:
    """The refusal of a model or loss_fn whose tail cannot run by itself."""
    return RuntimeRefusal(
        f"elastic.backward tail: {what}, want loss_fn to do the same before its last block each time it runs, and its "
        "blocks to give tensors with samples along dimension 0; attach with tail=0; the microbatch is undone"
    )


def is_constant(loss: object) -> bool:
    """Whether a loss is a number that depends on no parameter: all its samples are masked, say."""
    plain = isinstance(loss, torch.Tensor) and loss.numel() == 1 and not loss.requires_grad
    return plain and torch.is_grad_enabled()


class Answer:
    """What a block answered in a microbatch, and the gradient that its tensors have got so far."""

    def __init__(self, segment: Segment, output: Any, inputs: Any) -> None:
        self.segment = segment
        self.inputs = inputs
        leaves, self._spec = pytree.tree_flatten(output)
        self._leaves: list[Any] = leaves
        self._versions = [leaf._version if isinstance(leaf, torch.Tensor) else 0 for leaf in leaves]
        self._given: list[torch.Tensor | None] = [None] * len(leaves)
        self.gradients: list[torch.Tensor | None] = [None] * len(leaves)

    def cut(self, cut: Cut) -> Any:
        """The answer for a chunk, with leaves that collect a gradient."""
        self._given = [None] * len(self._leaves)
        return pytree.tree_unflatten([self._part(i, cut) for i in range(len(self._leaves))], self._spec)

    def _part(self, i: int, cut: Cut) -> Any:
        leaf = self._leaves[i]
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf._version != self._versions[i]:
            raise unlike(f"what block {self.segment.name} gave was edited in place")
        part = cut.given(leaf)
        if not leaf.requires_grad:
            return leaf if part is None else part
        if part is None:
            raise unlike(f"block {self.segment.name} gave a tensor of shape {tuple(leaf.shape)} for {cut.what()}")
        self._given[i] = given = part.detach().requires_grad_()
        return given

    def outputs(self) -> list[torch.Tensor]:
        """Its tensors that want a gradient."""
        return [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]

    def given(self) -> list[torch.Tensor]:
        """The leaves of the last cut."""
        return [leaf for leaf in self._given if leaf is not None]

    def collect(self, cut: Cut) -> None:
        """After the backward pass of the last cut."""
        for i, given in enumerate(self._given):
            if given is not None and given.grad is not None:
                self.add(i, cut, given.grad)
        self._given = [None] * len(self._leaves)

    def add(self, i: int, cut: Cut, gradient: torch.Tensor) -> None:
        """Of its leaf i for a chunk."""
        whole = self.gradients[i]
        if whole is None:
            whole = self.gradients[i] = torch.zeros_like(self._leaves[i], requires_grad=False)
        place = cut.rows(whole)
        assert place is not None
        if cut.span is None:
            place.copy_(gradient)
        else:  # a chunk may be shown tokens of the next one, which say nothing there
            place.add_(gradient)

    def roots(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the backward pass through the blocks starts from."""
        return [(self._leaves[i], gradient) for i, gradient in enumerate(self.gradients) if gradient is not None]


class Tail:
    """Runs microbatches with their tail in chunks of `samples` by `tokens`, 0 for all. Training thread only."""

    def __init__(self, samples: int, tokens: int = 0) -> None:
        self.samples, self.tokens = samples, tokens
        self.ahead = 0
        """Tokens that a chunk is shown besides its own, as check found: a loss of next tokens looks one ahead."""
        self.unweighed = 0
        """Tokens of what blocks give that weights= had no number for when check asked: a last one has no label."""
        self.calls = 0
        """Calls of blocks in one forward pass, as a first one showed."""
        self.asked = 0
        """The most samples that check has been asked of."""
        self._answers: list[Answer] = []
        self._counting = self._recording = False
        self._cut: Cut | None = None
        """While a chunk runs."""
        self._served = 0
        self._pending: Segment | None = None
        self._output: Any = None
        self._look: Callable[[Answer, Any, Cut], None] | None = None
        self._seen: Any = None

    # ---- hooks: asked by SegmentHooks ----

    def take(self, segment: Segment, args: Any, kwargs: Any) -> bool:
        """A block is called in our forward pass; True where it is to answer what it answered before."""
        self._seen = (args, kwargs) if self._recording and self._look is not None else None
        if self._cut is None:
            return False
        if self._served >= len(self._answers) or self._answers[self._served].segment is not segment:
            raise unlike(f"loss_fn called block {segment.name} where it had called another")
        if self._look is not None:
            self._look(self._answers[self._served], (args, kwargs), self._cut)
        self._pending = segment
        return True

    def left(self, segment: Segment, output: Any) -> None:
        """A block that was called in our forward pass has answered."""
        if self._counting:
            self.calls += 1
        elif self._recording:
            self._answers.append(Answer(segment, output, self._seen))
            self._seen = None
            if len(self._answers) == self.calls:
                raise Ended

    def _stub(self, segment: Segment) -> Callable[..., Any]:
        forward = segment.module.forward

        def answer(*args: Any, **kwargs: Any) -> Any:
            if self._pending is not segment or self._cut is None:
                return forward(*args, **kwargs)
            self._pending = None
            self._output = self._answers[self._served].cut(self._cut)
            self._served += 1
            return self._output

        return answer

    def last(self, segment: Segment) -> RemovableHandle:
        """A hook behind all others: hooks of other libraries have changed the block's answer once already."""

        def replace(module: torch.nn.Module, args: Any, output: Any) -> Any:
            mine, self._output = self._output, None
            return mine

        return segment.module.register_forward_hook(replace)

    # ---- one microbatch ----

    def count(self, loss_fn: Callable[[Any], torch.Tensor], batch: Any) -> torch.Tensor:
        """A whole forward pass: how many blocks it calls."""
        self.calls, self._counting = 0, True
        try:
            return loss_fn(batch)
        finally:
            self._counting = False

    def trunk(self, loss_fn: Callable[[Any], torch.Tensor], batch: Any, look: Any = None) -> Any:
        """The forward pass up to its last block; or the whole one's loss, where it calls no block and depends on
        nothing. `look` is called with each block's answer and its arguments in a chunk."""
        if not self.calls:
            raise unlike("no block was called outside torch.utils.checkpoint")
        self._answers, self._recording, self._look = [], True, look
        try:
            loss = loss_fn(batch)
        except Ended:
            return None
        finally:
            self._recording = False
        if not self._answers and is_constant(loss):
            return loss
        raise unlike(f"loss_fn called {len(self._answers)} blocks, where its first call had called {self.calls}")

    def chunk(
        self, segments: list[Segment], loss_fn: Callable[[Any], torch.Tensor], part: Any, cut: Cut
    ) -> torch.Tensor:
        """The loss of some of the microbatch's samples or tokens."""
        self._cut, self._served = cut, 0
        blocks = [segment for segment in segments if segment.block]
        before = [segment.module.__dict__.get("forward") for segment in blocks]
        handles = [self.last(segment) for segment in blocks]
        try:
            for segment in blocks:
                segment.module.__dict__["forward"] = self._stub(segment)
            loss = loss_fn(part)
        finally:
            for segment, forward in zip(blocks, before, strict=True):
                segment.module.__dict__.pop("forward", None)
                if forward is not None:
                    segment.module.__dict__["forward"] = forward
            for handle in handles:
                handle.remove()
            self._cut = self._pending = self._output = None
        if self._served != len(self._answers) and not (self._served == 0 and is_constant(loss)):
            raise unlike(f"loss_fn called {self._served} blocks, where its first call had called {self.calls}")
        return loss

    def outputs(self) -> list[torch.Tensor]:
        """What the blocks gave, but for what wants no gradient."""
        return [output for answer in self._answers for output in answer.outputs()]

    def given(self) -> list[torch.Tensor]:
        """The leaves of the chunk that ran last."""
        return [leaf for answer in self._answers for leaf in answer.given()]

    def known(self) -> set[int]:
        """The same, by id."""
        return {*map(id, self.given())}

    def collect(self, cut: Cut) -> None:
        """After a chunk's backward pass."""
        for answer in self._answers:
            answer.collect(cut)

    def roots(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What the backward pass through the blocks starts from; nothing else is kept."""
        found = [root for answer in self._answers for root in answer.roots()]
        self.forget()
        return found

    def forget(self) -> None:
        """Lets go of what the blocks gave."""
        self._answers, self._look, self._seen = [], None, None

    def cuts(self, batch: Any, size: int, weighed: int | None = None) -> list[Cut]:
        """The chunks of a microbatch whose trunk has run. `weighed` is how many tokens of each sample weights= has a
        number for."""
        rows = self.samples or size
        spans = self.spans(batch, size, weighed)
        return [Cut(start, min(start + rows, size), size, span) for start in range(0, size, rows) for span in spans]

    def spans(self, batch: Any, size: int, weighed: int | None = None) -> list[Span | None]:
        """The tokens of each chunk; one of None stands for all. Raises RuntimeRefusal where weights= have no longer
        their numbers for the same tokens."""
        whole = self.whole(batch, size) if self.tokens else None
        if whole is None:
            return [None]
        if weighed is not None and weighed != whole.length - self.unweighed:
            raise RuntimeRefusal(
                f"elastic.backward weights: {weighed} numbers a sample where blocks give {whole.length} tokens, want "
                f"{whole.length - self.unweighed} as at the first batch; the microbatch is undone"
            )
        return [*self.spans_of(whole, self.ahead)]

    def spans_of(self, whole: Span, ahead: int) -> list[Span]:
        """The chunks of all tokens, each shown so many of the next one's."""
        ends = [(first, min(first + self.tokens, whole.length)) for first in range(0, whole.length, self.tokens)]
        return [whole._replace(first=first, last=last, ahead=ahead) for first, last in ends]

    def whole(self, batch: Any, size: int) -> Span | None:
        """All tokens of a microbatch whose trunk has run; None where no block gave anything."""
        lengths = [int(t.shape[1]) if t.dim() > 1 else 0 for t in self.outputs()]
        if not lengths:
            return None
        length, columns = lengths[-1], width(batch, size)
        if not 0 < length <= columns:
            raise unlike(f"blocks give {length} tokens a sample, and the batch has {columns}")
        return Span(0, length, 0, length, columns)
