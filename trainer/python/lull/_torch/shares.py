"""The factor of each microbatch's loss within the batch's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lull._errors import RuntimeRefusal


def shares(size: int, reduction: str, weights: torch.Tensor | None) -> Callable[[int, int], float]:
    """The factor of a microbatch's loss within the batch's."""
    if weights is not None:
        if weights.dim() != 1 or weights.shape[0] != size:
            raise RuntimeRefusal(
                f"elastic.backward weights: got shape {tuple(weights.shape)}, want ({size},); nothing was trained"
            )
        exact = weights.detach().to("cpu", torch.float64)
        whole = float(exact.sum())
        if not 0 < whole < float("inf"):
            raise RuntimeRefusal(
                f"elastic.backward weights: sum is {whole}, want a finite number above 0; nothing was trained"
            )
        return lambda start, stop: float(exact[start:stop].sum()) / whole
    if reduction == "sum":
        return lambda start, stop: 1.0
    return lambda start, stop: (stop - start) / size
