"""Runs every block of a finished forward pass again and compares what it saves, bit for bit.

Asked once, of one sample, before anything is granted: a block that counts its calls in a list or that draws from a
generator of its own would train on with a gradient that is wrong only where an order had emptied it.
"""

from __future__ import annotations

import torch

from lull._torch.replay import differs, run_again
from lull._torch.slots import Run, Table


def refuse_fickle(table: Table) -> None:
    """Raises RuntimeRefusal where a block's second run saves other values than its first.

    Call it where backward would begin: by then attributes and modes are what a real second run would find.
    """
    for run in list(table.runs):
        if not run.stuck:
            _compare(run)


def _compare(run: Run) -> None:
    origin, slots = run.origin, {slot.index: slot for slot in run.live()}
    if origin is None or not slots or origin.changed():
        return
    for i, (again, saved_at) in enumerate(run_again(run, origin)):
        first = slots[i].tensor if i in slots else None
        if first is None or again is None or first._version != run.metas[i][2] or again._version != saved_at:
            continue  # what was edited in place is refused when it is read
        if not _opaque(first) and not _same(first, again):
            raise differs(run, f"other values in tensor {i} ({first.dtype} {tuple(first.shape)})")


def _opaque(tensor: torch.Tensor) -> bool:
    """A kernel's workspace or the place of its seed: bytes that need not be written where nobody reads them."""
    return tensor.dtype in (torch.uint8, torch.uint64) or (tensor.dtype == torch.int64 and tensor.numel() <= 2)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal values; NaN is equal to NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
