"""The leaves of a loss's graph: whose gradient a microbatch adds to.

What is neither in the model nor in attach's optimizer has no buffer of its own here: a microbatch that is undone
could not take its gradient back, nor could the dry step.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lull._errors import RuntimeRefusal

_ACCUMULATE, _CHECKPOINT = "torch::autograd::AccumulateGrad", "CheckpointFunctionBackward"


def leaves_of(*roots: torch.Tensor) -> list[torch.Tensor]:
    """The tensors whose .grad a backward pass from all of these would add to."""
    themselves = [root for root in roots if root.grad_fn is None]
    return [*themselves, *(node.variable for node in nodes_of(*roots) if accumulates(node))]


def accumulates(node: Any) -> bool:
    """Whether a node of a graph stands for a leaf."""
    return bool(node.name() == _ACCUMULATE)


def nodes_of(*roots: torch.Tensor) -> Iterator[Any]:
    """The graph behind some tensors, each node once."""
    todo: list[Any] = [*dict.fromkeys(root.grad_fn for root in roots if root.grad_fn is not None)]
    seen = {*todo}
    while todo:
        node = todo.pop()
        yield node
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                todo.append(after)


def hidden_leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    """Those inside reentrant checkpoints (torch.utils.checkpoint with use_reentrant=True), whose graph is made only in
    the backward pass: each runs once more here, which may draw random numbers and change buffers."""
    found: list[torch.Tensor] = []
    roots = [loss]
    while roots:
        for node in [*nodes_of(roots.pop())]:
            if node.name() != _CHECKPOINT or not hasattr(node, "run_function"):
                continue
            inputs = [*node.inputs]
            for i, tensor in zip(node.tensor_indices, node.saved_tensors, strict=True):
                inputs[i] = tensor.detach().requires_grad_(tensor.requires_grad)
            with torch.enable_grad():
                made = node.run_function(*inputs)
            given = {*map(id, inputs)}
            for out in made if isinstance(made, tuple) else (made,):
                if isinstance(out, torch.Tensor) and out.grad_fn is not None:
                    roots.append(out)
                    found += [leaf for leaf in leaves_of(out) if id(leaf) not in given]
    return found


def known_leaves(params: list[torch.nn.Parameter], given: Iterable[torch.Tensor]) -> set[int]:
    """What may get a gradient: the parameters that are trained, and the batch's own tensors; by id."""
    return {*map(id, params), *map(id, given)}


class Leaves:
    """Refuses leaves that nobody trains here. Ask it before each backward pass that may be undone: a loss may reach
    another tensor in each microbatch.

    A leaf that loss_fn makes anew in each call (a gradient penalty does) has no gradient that outlives it, so
    only a parameter is refused at first sight, any other tensor when it comes a second time. Its gradient is then
    put back to what it was before this batch.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[weakref.ReferenceType[torch.Tensor], tuple[torch.Tensor | None] | None]] = {}
        """By id: a leaf that was seen once, and a copy of its gradient from before; None when that was in an earlier
        batch, whose gradient is whole and the user's own by now."""

    def begin_batch(self) -> None:
        """From now on what is put back is what this batch added."""
        self._before = {key: (ref, None) for key, (ref, _) in self._before.items() if ref() is not None}

    def refuse_strangers(self, roots: Sequence[torch.Tensor], known: set[int]) -> list[torch.Tensor]:
        """Raises RuntimeRefusal for a leaf that is not `known`; returns those that may have been made in this call.
        `roots` are all that one backward pass starts from."""
        others = [leaf for leaf in leaves_of(*roots) if id(leaf) not in known]
        if not others:
            return others
        self._before = {key: (ref, grad) for key, (ref, grad) in self._before.items() if ref() is not None}
        for leaf in others:
            before = self._before.pop(id(leaf), None)
            if before is not None and before[1] is not None:
                leaf.grad = before[1][0]
            if before is not None or isinstance(leaf, torch.nn.Parameter):
                raise _stranger(leaf)
        for leaf in others:
            self._before[id(leaf)] = (weakref.ref(leaf), (None if leaf.grad is None else leaf.grad.clone(),))
        return others


def refuse_hidden(loss: torch.Tensor, known: set[int]) -> None:
    """Raises RuntimeRefusal for a leaf inside a reentrant checkpoint that is not `known`. It costs what the checkpoints
    cost: for the dry step."""
    for leaf in hidden_leaves(loss):
        if id(leaf) not in known:
            raise _stranger(leaf)


def _stranger(leaf: torch.Tensor) -> RuntimeRefusal:
    return RuntimeRefusal(
        f"elastic.backward loss_fn: its loss depends on a tensor of shape {tuple(leaf.shape)} that wants a gradient "
        "and is neither in the model nor in attach's optimizer, want it in one of them: a microbatch that is undone "
        "could not take its gradient back; give it to the optimizer that attach gets, or call requires_grad_(False) "
        "on it while this model trains; the microbatch is undone"
    )


class Given:
    """The gradients of a batch's own tensors, to which a microbatch that is undone must have added nothing."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        self._leaves = [leaf for leaf in given if leaf.requires_grad and leaf.is_leaf]
        self._before: list[torch.Tensor | None] = []

    def keep(self) -> None:
        """Before a microbatch."""
        self._before = [None if leaf.grad is None else leaf.grad.clone() for leaf in self._leaves]

    def restore(self) -> None:
        """After one that is undone."""
        for leaf, grad in zip(self._leaves, self._before, strict=False):
            leaf.grad = grad
        self._before = []


@contextmanager
def spared(leaves: list[torch.Tensor]) -> Iterator[None]:
    """What is added to their .grad meanwhile is forgotten."""
    before = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad
