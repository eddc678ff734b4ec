"""The factor of each microbatch's loss within the batch's."""

from __future__ import annotations

from typing import Protocol

import torch

from lull._errors import RuntimeRefusal


class Share(Protocol):
    """The factor of the loss of samples start to stop, or of some tokens of each, within a larger loss."""

    def __call__(self, start: int, stop: int, tokens: tuple[int, int] | None = None) -> float: ...


def shares(size: int, reduction: str, weights: torch.Tensor | None, tokens: torch.Tensor | None = None) -> Share:
    """The factor of a part's loss within the batch's. `tokens` are the weights by sample and token, where they are
    known; where they are not, only a sum has parts of fewer than all tokens.

    Raises RuntimeRefusal for weights that are not one number of at least 0 a sample, with a finite sum above 0.
    """
    if weights is not None:
        exact = _checked(size, weights)
        whole = float(exact.sum())
        if not 0 < whole < float("inf"):
            raise RuntimeRefusal(
                f"elastic.backward weights: sum is {whole}, want a finite number above 0; nothing was trained"
            )
        each = None if tokens is None else tokens.detach().to("cpu", torch.float64)

        def weighed(start: int, stop: int, tokens: tuple[int, int] | None = None) -> float:
            if tokens is None or each is None:
                return float(exact[start:stop].sum()) / whole
            return float(each[start:stop, tokens[0] : tokens[1]].sum()) / whole

        return weighed
    if reduction == "sum":
        return lambda start, stop, tokens=None: 1.0
    return lambda start, stop, tokens=None: (stop - start) / size


def of_samples(weights: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Weights as a caller gives them, by sample or by sample and token: those by sample, and those by token where they
    are given."""
    if weights is None or weights.dim() != 2:
        return weights, None
    exact = weights.detach().to("cpu", torch.float64)
    _refuse_negative(exact.amin(1) if exact.shape[1] else exact.sum(1))
    return exact.sum(1), exact


def count(size: int, reduction: str, weights: torch.Tensor | None) -> float:
    """What the batch's loss is divided by, for a batch that is a part of another: its samples, or the sum of their
    weights, which may be 0."""
    if weights is None:
        return float(size)
    return float(_checked(size, weights).sum())


def _checked(size: int, weights: torch.Tensor) -> torch.Tensor:
    if weights.dim() != 1 or weights.shape[0] != size:
        raise RuntimeRefusal(
            f"elastic.backward weights: got shape {tuple(weights.shape)}, want ({size},) or ({size}, tokens); nothing "
            "was trained"
        )
    exact = weights.detach().to("cpu", torch.float64)
    _refuse_negative(exact)
    return exact


def _refuse_negative(exact: torch.Tensor) -> None:
    if below := [i for i, weight in enumerate(exact.tolist()) if weight < 0]:
        raise RuntimeRefusal(
            f"elastic.backward weights: sample {below[0]} has {float(exact[below[0]])}, want at least 0; weights "
            "share out the batch's loss, and a sample that should count against it belongs into loss_fn; nothing "
            "was trained"
        )
