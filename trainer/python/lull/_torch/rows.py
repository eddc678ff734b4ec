"""Which tensors of a batch belong to its samples? Those with as many rows as it has samples: a table that is as long by
chance (class weights, prototypes) would be cut too. Asked once, of two samples of the first batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.batch import anew, rows_of, spread_copy
from lull._torch.separable import eval_mode

_FEW = 2


def check_rows(model: torch.nn.Module, loss_fn: Callable[[Any], Any], batch: Any, size: int) -> None:
    """Raises RuntimeRefusal where loss_fn fails on two samples and takes them where one tensor is left whole."""
    count = rows_of(batch, size)
    if size <= _FEW or count < 2:
        return

    def fails(keep: int | None) -> Exception | None:
        few = anew(spread_copy(batch, (0, size - 1), size, keep=keep))
        try:
            with eval_mode(model), torch.no_grad():
                loss_fn(few)
        except Exception as error:
            return error
        return None

    error = fails(None)
    if error is None or isinstance(error, RuntimeRefusal):
        return
    for i in range(count):
        if fails(i) is None:
            raise RuntimeRefusal(
                f"elastic.backward batch: loss_fn fails on {_FEW} of {size} samples ({type(error).__name__}: "
                f"{str(error)[:200]}), and takes them where tensor {i + 1} of those with {size} rows is left whole: it "
                "seems to have the batch's length by chance, want lull.whole(tensor) in its place; nothing was trained"
            ) from error
