"""Does loss_fn separate over samples as the caller says? Asked once, of a few samples of the first batch.

Microbatches add up to the batch's gradient only if the batch's loss is the mean (or the sum, or the
weighted mean) of its samples' losses. A loss that divides by tokens, a sum that is called a mean, and a
loss that compares samples with one another would train on, with a wrong gradient and no error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.batch import part, refuse_edits, spread_copy

_log = logging.getLogger("lull")

SAMPLES = 4
"""How many samples are asked: enough that lengths differ, few enough to cost nothing. They are spread over the
batch, first to last: one that is sorted by length or by label has like samples beside each other."""

_LOOSE, _TIGHT = 3e-2, 1e-3
"""Relative difference allowed for rounding: with 16-bit parameters, and with wider ones."""

_ADVICE = (
    "pass weights= with one number a sample where the loss divides by their sum (tokens), reduction='sum' where it "
    "adds them up, or attach(partition='trusted') to accept that microbatches change the gradient; nothing was trained"
)


def places(size: int) -> tuple[int, ...]:
    """The samples of a batch that are asked: SAMPLES of them from the first to the last, or all."""
    n = min(size, SAMPLES)
    return tuple(i * (size - 1) // max(n - 1, 1) for i in range(n))


@dataclass(frozen=True)
class Asked:
    """What loss_fn said of a few samples: of each alone, and of all together."""

    singles: list[float]
    whole: float
    at: tuple[int, ...]
    """Their places in the batch."""

    def made(self, reduction: str, weights: torch.Tensor | None) -> float:
        """What the reduction makes of the single losses."""
        return _combine(self.singles, reduction, self._weights(weights))

    def counted(self, weights: torch.Tensor | None) -> list[float]:
        """The single losses that count: a sample of weight 0 is never run alone."""
        if weights is None:
            return self.singles
        return [loss for loss, i in zip(self.singles, self.at, strict=True) if float(weights[i])]

    def _weights(self, weights: torch.Tensor | None) -> torch.Tensor | None:
        return None if weights is None else weights[list(self.at)]

    def off(self, reduction: str, weights: torch.Tensor | None) -> float:
        """How far that is from the loss of all, relative to the largest of them; infinitely far where a sample
        alone has none: in a microbatch of its own it would train on NaN."""
        counted = self.counted(weights)
        if not all(map(math.isfinite, counted)):
            return math.inf
        made = self.made(reduction, weights)
        scale = max(abs(self.whole), abs(made), max(map(abs, counted), default=0.0), 1e-12)
        return abs(self.whole - made) / scale


def ask(model: torch.nn.Module, loss_fn: Callable[[Any], torch.Tensor], batch: Any, size: int) -> Asked | None:
    """Asks loss_fn; None when its answers say nothing: a single sample, no number, or not the same twice.

    The model runs in eval mode, and without gradients where the loss holds none itself: dropout and batch
    statistics differ between partitions by nature, and say nothing about the loss.
    """
    at = places(size)
    n = len(at)
    if n < 2:
        return None
    few = spread_copy(batch, at, size)
    asked = [*((i, i + 1) for i in range(n)), (0, n), (0, n)]

    def losses_now() -> Iterator[Any]:
        return (loss_fn(part(few, start, stop, n)) for start, stop in asked)

    with eval_mode(model):
        try:
            with torch.no_grad():
                losses = [*losses_now()]
        except RuntimeError:  # a loss that holds a gradient itself
            losses = [*map(_detached, losses_now())]
    refuse_edits(few)
    if any(not isinstance(loss, torch.Tensor) or loss.numel() != 1 for loss in losses):
        return None  # backward says what it wants
    *singles, whole, again = map(float, losses)
    if abs(whole - again) > tolerance(model) * max(abs(whole), abs(again)):
        _log.warning(
            "loss_fn: the same %d samples have the loss %.6g and then %.6g in eval mode: not checked", n, whole, again
        )
        return None
    return Asked(singles, whole, at) if math.isfinite(whole) else None


def check_separable(
    model: torch.nn.Module,
    loss_fn: Callable[[Any], torch.Tensor],
    batch: Any,
    size: int,
    reduction: str,
    weights: torch.Tensor | None,
) -> None:
    """Raises RuntimeRefusal when the loss of a few samples is not what their single losses make of it."""
    asked = ask(model, loss_fn, batch, size)
    if asked is None:
        return
    n, whole = len(asked.singles), asked.whole
    if not all(map(math.isfinite, asked.counted(weights))):
        raise RuntimeRefusal(
            f"elastic.backward loss_fn: {n} samples have the loss {whole:.6g}, yet one alone has none "
            f"({asked.singles}): it divides by something that a single sample may lack; {_ADVICE}"
        )
    if asked.off(reduction, weights) <= tolerance(model):
        return
    how = f"reduction={reduction!r}{'' if weights is None else ' with weights'}"
    raise RuntimeRefusal(
        f"elastic.backward loss_fn: {n} samples have the loss {whole:.6g}, want "
        f"{asked.made(reduction, weights):.6g}, what {how} makes of their single losses; {_ADVICE}"
    )


def _detached(loss: Any) -> Any:
    return loss.detach() if isinstance(loss, torch.Tensor) else loss


def _combine(singles: list[float], reduction: str, weights: torch.Tensor | None) -> float:
    if weights is not None:
        w = [float(x) for x in weights]
        total = sum(w)
        return sum(a * b for a, b in zip(singles, w, strict=True) if b) / total if total else 0.0
    return sum(singles) if reduction == "sum" else sum(singles) / len(singles)


def tolerance(model: torch.nn.Module) -> float:
    narrow = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    return _LOOSE if narrow or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") else _TIGHT


@contextmanager
def eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Eval mode; each module's own mode comes back."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
