"""Does loss_fn separate over samples as the caller says? Asked of a few samples of the first batch, and of the first
batch in which samples differ in length.

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
from lull._torch.batch import part, refuse_edits, spread_copy, tensors_in

_log = logging.getLogger("lull")

SAMPLES = 4
"""How many samples are asked: enough that lengths differ, few enough to cost nothing. They are spread over the
batch, first to last: one that is sorted by length or by label has like samples beside each other."""

_LOOSE, _TIGHT = 3e-2, 1e-3
"""The most relative difference that is taken for rounding: with 16-bit parameters, and with wider ones."""

_LEAST = 1e-2
"""The least, as a share of the most: float32 adds up a thousand numbers to a few in a million."""

_ROUNDINGS = 30.0
"""A difference of so many times what rounding was seen to make of one sample and its copies is none of rounding's."""

_ALIKE = 30
"""Single losses within so many tolerances of each other say little: any weights make nearly the same of them. So it is
with a model that is not trained yet, which says the same of every sample."""

_STRETCH = 4.0
"""What all weights are multiplied by to hear more: a power of two, so that dividing by it gives back the same bits."""

IGNORED = -100
"""What PyTorch's and Hugging Face's losses leave out of labels."""

_ADVICE = (
    "pass weights= with one number a sample where the loss divides by their sum (tokens), reduction='sum' where it "
    "adds them up, or attach(partition='trusted') to accept that microbatches change the gradient; nothing was trained"
)


def places(size: int) -> tuple[int, ...]:
    """The samples of a batch that are asked: SAMPLES of them from the first to the last, or all."""
    n = min(size, SAMPLES)
    return tuple(i * (size - 1) // max(n - 1, 1) for i in range(n))


def lengths(batch: Any, size: int) -> list[int] | None:
    """How many positions of each sample count, where the batch says so: labels other than -100, masks other than 0.

    None where it says nothing, or as many for all.
    """
    for leaf in tensors_in(batch):
        if leaf.dim() < 2 or leaf.shape[0] != size or leaf.is_floating_point() or leaf.is_complex():
            continue
        rows = leaf.flatten(1)
        masked = leaf.dtype is torch.bool or bool(rows.numel() and rows.min() >= 0 and rows.max() <= 1)
        counts = [int(n) for n in (rows != 0 if masked else rows != IGNORED).sum(1)]
        if len(set(counts)) > 1:
            return counts
    return None


def unlike(counts: list[int]) -> tuple[int, ...]:
    """The places of a short and a long sample, and of the ends of the batch."""
    short, long = min(range(len(counts)), key=counts.__getitem__), max(range(len(counts)), key=counts.__getitem__)
    return tuple(sorted({0, short, long, len(counts) - 1}))


@dataclass(frozen=True)
class Asked:
    """What loss_fn said of a few samples: of each alone, and of all together."""

    singles: list[float]
    whole: float
    at: tuple[int, ...]
    """Their places in the batch."""
    copies: float = math.nan
    """The loss of as many copies of the first sample that has one: what that is off from its own is rounding."""

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

    def limit(self, reduction: str, most: float) -> float:
        """What may be off by rounding, as far as copies of one sample show it; at most `most`."""
        single = next((loss for loss in self.singles if math.isfinite(loss)), math.nan)
        made = single * len(self.singles) if reduction == "sum" else single
        seen = abs(self.copies - made) / max(abs(self.copies), abs(made), 1e-12)
        return min(most, max(_LEAST * most, _ROUNDINGS * seen)) if math.isfinite(seen) else most

    def alike(self, weights: torch.Tensor | None, tolerance: float) -> bool:
        """Whether the single losses are too near each other to tell weights apart."""
        counted = self.counted(weights)
        scale = max(max(map(abs, counted), default=0.0), 1e-12)
        return max(counted, default=0.0) - min(counted, default=0.0) < _ALIKE * tolerance * scale


def ask(
    model: torch.nn.Module,
    loss_fn: Callable[[Any], torch.Tensor],
    batch: Any,
    size: int,
    at: tuple[int, ...] | None = None,
) -> Asked | None:
    """Asks loss_fn; None when its answers say nothing: a single sample, no number, or not the same twice.

    The model runs in eval mode, and without gradients where the loss holds none itself: dropout and batch
    statistics differ between partitions by nature, and say nothing about the loss.
    """
    at = places(size) if at is None else at
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
    if not math.isfinite(whole):
        return None
    return Asked(singles, whole, at, _of_copies(model, loss_fn, batch, size, at, singles))


def _of_copies(
    model: torch.nn.Module,
    loss_fn: Callable[[Any], torch.Tensor],
    batch: Any,
    size: int,
    at: tuple[int, ...],
    singles: list[float],
) -> float:
    """The loss of len(at) copies of one sample; NaN where none has a loss, or copies have none."""
    which = next((i for i, loss in zip(at, singles, strict=True) if math.isfinite(loss)), None)
    if which is None:
        return math.nan
    same = spread_copy(batch, (which,) * len(at), size)
    with eval_mode(model), torch.no_grad():
        try:
            return float(loss_fn(part(same, 0, len(at), len(at))))
        except RuntimeRefusal:
            raise
        except Exception:  # samples of a batch must differ for it, or it holds a gradient itself
            return math.nan


def check_separable(
    model: torch.nn.Module,
    loss_fn: Callable[[Any], torch.Tensor],
    batch: Any,
    size: int,
    reduction: str,
    weights: torch.Tensor | None,
) -> None:
    """Raises RuntimeRefusal when the loss of a few samples is not what their single losses make of it."""
    counts = lengths(batch, size)
    at = places(size) if counts is None else unlike(counts)
    asked = ask(model, loss_fn, batch, size, at)
    if asked is None:
        return
    n, whole = len(asked.singles), asked.whole
    if not all(map(math.isfinite, asked.counted(weights))):
        raise RuntimeRefusal(
            f"elastic.backward loss_fn: {n} samples have the loss {whole:.6g}, yet one alone has none "
            f"({asked.singles}): it divides by something that a single sample may lack; {_ADVICE}"
        )
    most, how = tolerance(model), "with the weights as they are"
    if asked.off(reduction, weights) <= asked.limit(reduction, most) and asked.alike(weights, most):
        louder = _ask_louder(model, loss_fn, batch, size, at)
        if louder is not None and all(map(math.isfinite, louder.counted(weights))):
            asked, how = louder, f"with all weights times {_STRETCH:g}, since their single losses are alike without"
    if asked.off(reduction, weights) <= asked.limit(reduction, most):
        return
    made = f"reduction={reduction!r}{'' if weights is None else ' with weights'}"
    raise RuntimeRefusal(
        f"elastic.backward loss_fn: {n} samples have the loss {asked.whole:.6g} {how}, want "
        f"{asked.made(reduction, weights):.6g}, what {made} makes of their single losses; {_ADVICE}"
    )


def _ask_louder(
    model: torch.nn.Module, loss_fn: Callable[[Any], torch.Tensor], batch: Any, size: int, at: tuple[int, ...]
) -> Asked | None:
    """The same question with larger weights, whose answers differ more; None where they make no sense to the model."""
    with _stretched(model) as done:
        if not done:
            return None
        try:
            return ask(model, loss_fn, batch, size, at)
        except RuntimeRefusal:
            raise
        except Exception as error:  # a check of the user's own, which such weights do not pass
            _log.debug("loss_fn: asked with all weights times %g: %s", _STRETCH, error)
            return None


@contextmanager
def _stretched(model: torch.nn.Module) -> Iterator[bool]:
    """All weights times _STRETCH, and the same bits again afterwards; no version counter moves, so that graphs that
    the user still holds stay good. False, and nothing done, where one is too large for that."""
    plain = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    weights = [p.data for p in model.parameters() if p.dtype in plain and p.numel()]
    if any(float(p.abs().max()) * _STRETCH >= torch.finfo(p.dtype).max for p in weights):
        yield False
        return
    done: list[torch.Tensor] = []
    try:
        for p in weights:
            done.append(p)
            p.mul_(_STRETCH)
        yield True
    finally:
        for p in done:
            p.div_(_STRETCH)


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
