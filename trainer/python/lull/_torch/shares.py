"""The factor of each microbatch's loss within the batch's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lull._errors import RuntimeRefusal


def shares(size: int, reduction: str, weights: torch.Tensor | None) -> Callable[[int, int], float]:
    """The factor of a microbatch's loss within the batch's.

    Raises RuntimeRefusal for weights that are not one number of at least 0 a sample, with a finite sum above 0.
    """
    if weights is not None:
        exact = _checked(size, weights)
        whole = float(exact.sum())
        if not 0 < whole < float("inf"):
            raise RuntimeRefusal(
                f"elastic.backward weights: sum is {whole}, want a finite number above 0; nothing was trained"
            )
        return lambda start, stop: float(exact[start:stop].sum()) / whole
    if reduction == "sum":
        return lambda start, stop: 1.0
    return lambda start, stop: (stop - start) / size


def count(size: int, reduction: str, weights: torch.Tensor | None) -> float:
    """What the batch's loss is divided by, for a batch that is a part of another: its samples, or the sum of their
    weights, which may be 0."""
    if weights is None:
        return float(size)
    return float(_checked(size, weights).sum())


def _checked(size: int, weights: torch.Tensor) -> torch.Tensor:
    if weights.dim() != 1 or weights.shape[0] != size:
        raise RuntimeRefusal(
            f"elastic.backward weights: got shape {tuple(weights.shape)}, want ({size},); nothing was trained"
        )
    exact = weights.detach().to("cpu", torch.float64)
    if below := [i for i, weight in enumerate(exact.tolist()) if weight < 0]:
        raise RuntimeRefusal(
            f"elastic.backward weights: sample {below[0]} has {float(exact[below[0]])}, want at least 0; weights "
            "share out the batch's loss, and a sample that should count against it belongs into loss_fn; nothing "
            "was trained"
        )
    return exact
