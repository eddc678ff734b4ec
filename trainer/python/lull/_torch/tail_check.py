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
from lull._torch.batch import anew, part, spread_copy
from lull._torch.leaves import accumulates, nodes_of
from lull._torch.micro import LossFn, Microbatches, check_loss, ran_out
from lull._torch.separable import eval_mode, places, tolerance
from lull._torch.shares import shares
from lull._torch.tail import Answer, Tail, is_constant, unlike
from lull._torch.undo import Forwards, Snapshot


def check_tail(
    job: Microbatches,
    tail: Tail,
    batch: Any,
    size: int,
    loss_fn: LossFn,
    reduction: str,
    weights: torch.Tensor | None,
) -> None:
    """Raises RuntimeRefusal where the chunks' losses do not make that of the whole, or blocks get other arguments."""
    counted = [i for i in range(size) if weights is None or float(weights[i])]
    some = [counted[i] for i in places(len(counted))]
    pairs = [(*dict.fromkeys(pair),) for pair in ((some[0], some[-1]), *itertools.pairwise(some))]
    calls = tail.calls
    before = Snapshot(job.device, job.model, job._movers if job.memory.known else None)
    table = job._new_table()

    def made(at: tuple[int, ...], look: Any) -> float:
        """What the chunks make of the samples at these places, a sample each."""
        few = spread_copy(batch, at, size)
        share = shares(len(at), reduction, None if weights is None else weights[list(at)])
        forwards = Forwards(job.model)
        with job._hooks.outer(table):
            tail.trunk(loss_fn, anew(few), look)
        forwards.put_back()
        blocks = {node for node in nodes_of(*tail.outputs()) if not accumulates(node)}
        total = 0.0
        for i in range(len(at)):
            with job._hooks.outer(table):
                loss = tail.chunk(job.segments, loss_fn, part(few, i, i + 1, len(at)), (i, i + 1, len(at)))
            if not is_constant(loss):
                check_loss(loss)
                if not blocks.isdisjoint(nodes_of(loss)):
                    raise unlike(
                        "the loss depends on what a block keeps besides what it gives (an auxiliary loss in an "
                        "attribute)"
                    )
            total += float(loss.detach()) * share(i, i + 1)
        return total

    try:
        with job._hooks, job._caches_off():
            with eval_mode(job.model):
                for at in pairs:  # masked samples say nothing
                    few = spread_copy(batch, at, size)
                    _refuse_own_gradients(loss_fn, anew(few))
                    with job._hooks.outer(table):
                        loss = tail.count(loss_fn, anew(few))
                    if tail.calls or not is_constant(loss):
                        break
                else:
                    tail.calls = calls
                    return
                whole = float(loss.detach())
                sums = made(at, None)
            most = tolerance(job.model)
            if math.isfinite(whole) and not abs(sums - whole) <= most * max(abs(whole), abs(sums), 1e-12):
                raise unlike(f"{len(at)} samples have the loss {whole:.6g}, and {sums:.6g} with a tail of one each")
            made(at, lambda answer, inputs, cut: _compare(answer, inputs, cut, most))
    except RuntimeRefusal:
        raise
    except Exception as error:
        if ran_out(error):
            raise
        raise unlike(f"loss_fn failed on a part of the samples ({type(error).__name__}: {str(error)[:200]})") from error
    finally:
        tail.forget()
        job._hooks.end_forward()
        job._finish(table)
        job._movers |= before.restore()
    tail.asked = len(at)


def _refuse_own_gradients(loss_fn: LossFn, few: Any) -> None:
    """Raises RuntimeRefusal where a loss holds a gradient itself: in a chunk it would end at the last block."""
    try:
        with torch.no_grad():
            loss_fn(few)
    except RuntimeError as error:
        raise unlike(f"loss_fn takes a gradient itself, or fails without one ({str(error)[:200]})") from error


def _compare(answer: Answer, inputs: Any, cut: tuple[int, int, int], most: float) -> None:
    """Raises RuntimeRefusal where a block gets other arguments in a chunk than in the whole."""
    start, stop, size = cut
    first, now = pytree.tree_leaves(answer.inputs), pytree.tree_leaves(inputs)
    for a, b in zip(first, now, strict=False):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        part = a[start:stop] if a.dim() and a.shape[0] == size else a
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
