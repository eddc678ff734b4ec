"""May the tail run in chunks? Asked once, of one sample and of two, before a microbatch is trained so.

A chunk runs again what loss_fn does before its last block. What differs there from the first run (dropout on
embeddings, noise, statistics of the batch) would train on with a wrong gradient and no error.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lull._errors import RuntimeRefusal
from lull._torch.batch import anew, spread_copy
from lull._torch.call import Call
from lull._torch.cuts import Cut
from lull._torch.leaves import accumulates, nodes_of
from lull._torch.micro import Microbatches, ran_out
from lull._torch.passes import LossFn, check_loss
from lull._torch.separable import eval_mode, places, tolerance
from lull._torch.shares import Share, shares
from lull._torch.slots import Table
from lull._torch.tail import Answer, Tail, is_constant, unlike
from lull._torch.token_check import TokenCheck, unlike_tokens
from lull._torch.undo import Forwards, Snapshot


def check_tail(job: Microbatches, tail: Tail, call: Call, size: int) -> None:
    """Raises RuntimeRefusal where the chunks' losses do not make that of the whole, or blocks get other arguments."""
    if tail.tokens and call.tokens is None and (call.weights is not None or call.reduction != "sum"):
        raise RuntimeRefusal(
            "elastic.backward weights: want one number for each token of each sample where attach has tail_tokens, or "
            "reduction='sum': a mean over tokens is divided by the count of the whole batch; nothing was trained"
        )
    if tail.asked >= min(size, 2):
        return
    before = Snapshot(job.device, job.model, job.movers if job.memory.known else None)
    table = job.new_table()
    try:
        with job.hooks, job.caches_off():
            asked = _TailCheck(job, tail, table, call, size).ask()
    except RuntimeRefusal:
        raise
    except Exception as error:
        if ran_out(error):
            raise
        raise unlike(f"loss_fn failed on a part of the batch ({type(error).__name__}: {str(error)[:200]})") from error
    finally:
        tail.forget()
        job.hooks.end_forward()
        job.finish(table)
        job.movers |= before.restore()
    tail.asked = max(tail.asked, asked)


class _TailCheck:
    """A few samples of a batch whose tail is run whole and in parts."""

    def __init__(self, job: Microbatches, tail: Tail, table: Table, call: Call, size: int) -> None:
        self._job, self._tail, self._table, self._call, self._size = job, tail, table, call, size

    def ask(self) -> int:
        """How many samples were asked; 0 where all said nothing."""
        job, tail, loss_fn, calls = self._job, self._tail, self._call.loss_fn, self._tail.calls
        with eval_mode(job.model):
            for at in self._pairs():  # masked samples say nothing
                few = self._few(at)
                _refuse_own_gradients(loss_fn, anew(few))
                with job.hooks.outer(self._table):
                    loss = tail.count(loss_fn, anew(few))
                if tail.calls or not is_constant(loss):
                    break
            else:
                tail.calls = calls
                return 0
            whole = float(loss.detach())
            sums = self._made(at, None)
        most = tolerance(job.model)
        if math.isfinite(whole) and not abs(sums - whole) <= most * max(abs(whole), abs(sums), 1e-12):
            raise unlike(f"{len(at)} samples have the loss {whole:.6g}, and {sums:.6g} with a tail of one each")
        self._made(at, lambda answer, inputs, cut: _compare(answer, inputs, cut, most))
        if tail.tokens:
            with eval_mode(job.model):
                self._ask_tokens()
        return len(at)

    def _pairs(self) -> list[tuple[int, ...]]:
        weights = self._call.weights
        counted = [i for i in range(self._size) if weights is None or float(weights[i])]
        some = [counted[i] for i in places(len(counted))]
        return [(*dict.fromkeys(pair),) for pair in ((some[0], some[-1]), *itertools.pairwise(some))]

    def _few(self, at: tuple[int, ...]) -> Any:
        return spread_copy(self._call.batch, at, self._size)

    def _share(self, at: tuple[int, ...]) -> Share:
        weights, tokens = self._call.weights, self._call.tokens
        of_them = [*at]
        return shares(
            len(at),
            self._call.reduction,
            None if weights is None else weights[of_them],
            None if tokens is None else tokens[of_them],
        )

    def _made(self, at: tuple[int, ...], look: Any) -> float:
        """What the chunks make of the samples at these places, a sample each."""
        job, tail, loss_fn = self._job, self._tail, self._call.loss_fn
        few, share = self._few(at), self._share(at)
        forwards = Forwards(job.model)
        with job.hooks.outer(self._table):
            tail.trunk(loss_fn, anew(few), look)
        forwards.put_back()
        blocks = {node for node in nodes_of(*tail.outputs()) if not accumulates(node)}
        total = 0.0
        for i in range(len(at)):
            cut = Cut(i, i + 1, len(at))
            with job.hooks.outer(self._table):
                loss = tail.chunk(job.segments, loss_fn, cut.of(few), cut)
            if not is_constant(loss):
                check_loss(loss)
                if not blocks.isdisjoint(nodes_of(loss)):
                    raise unlike(
                        "the loss depends on what a block keeps besides what it gives (an auxiliary loss in an "
                        "attribute)"
                    )
            total += float(loss.detach()) * share(i, i + 1)
        return total

    def _ask_tokens(self) -> None:
        """Of the first samples that say something."""
        tail, call = self._tail, self._call
        for at in self._pairs():
            few = self._few(at)
            share = self._share(at)
            found = TokenCheck(self._job, tail, self._table, call.loss_fn, few, len(at), share).ahead()
            whole = tail.whole(few, len(at))
            if found is not None and whole is not None:
                tail.ahead = found
                tail.unweighed = 0 if call.weighed is None else whole.length - call.weighed
                return
        raise unlike_tokens(
            "no sample has two tokens beside each other whose gradient reaches the blocks (labels that are masked, a "
            "head that begins at zero)"
        )


def _refuse_own_gradients(loss_fn: LossFn, few: Any) -> None:
    """Raises RuntimeRefusal where a loss holds a gradient itself: in a chunk it would end at the last block."""
    try:
        with torch.no_grad():
            loss_fn(few)
    except RuntimeError as error:
        raise unlike(f"loss_fn takes a gradient itself, or fails without one ({str(error)[:200]})") from error


def _compare(answer: Answer, inputs: Any, cut: Cut, most: float) -> None:
    """Raises RuntimeRefusal where a block gets other arguments in a chunk than in the whole."""
    first, now = pytree.tree_leaves(answer.inputs), pytree.tree_leaves(inputs)
    for a, b in zip(first, now, strict=False):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        rows = cut.rows(a)
        part = a if rows is None else rows
        if part.shape != b.shape or not _close(part.detach(), b.detach(), most):
            raise unlike(
                f"block {answer.segment.name} gets other values when a part of the samples runs again (dropout or "
                "noise before or between blocks, BatchNorm before them)"
            )
    if len(first) != len(now):
        raise unlike(f"block {answer.segment.name} gets {len(now)} arguments, and {len(first)} before")


def _close(a: torch.Tensor, b: torch.Tensor, most: float) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=most, atol=most * float(a.abs().max()) if a.numel() else 0.0, equal_nan=True)
