"""What a LightningModule logs in training_step, when the step runs on parts of its batch.

self.log is called once for each part, also for parts that are run again or only looked at. What the parts that counted
said is joined and logged once for the batch; torchmetrics' objects go back to what they were before a part that did
not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lull._errors import RuntimeRefusal

_JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "max": lambda values, _: values.max(),
    "min": lambda values, _: values.min(),
    "sum": lambda values, _: values.sum(),
    "mean": lambda values, shares: (values * shares).sum() / shares.sum(),
}


class Logged:
    """Collects self.log of one module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._log = module.log
        self._places = list(inspect.signature(module.log).parameters)[2:]  # of arguments after name and value
        self._pending: list[tuple[str, Any, dict[str, Any]]] | None = None
        self._counted: list[tuple[int, list[tuple[str, Any, dict[str, Any]]]]] = []
        self._states: list[tuple[Any, dict[str, Any]]] = []

    @contextmanager
    def of_part(self) -> Iterator[None]:
        """Around one call of training_step."""
        self._put_back()
        self._states = [(m, _state(m)) for m in self._module.modules() if hasattr(m, "_defaults") and callable(m)]
        self._pending = []
        self._module.log = self._take
        try:
            yield
        finally:
            del self._module.log

    def committed(self, samples: int) -> None:
        """The part that ran last counts."""
        if self._pending is not None:
            self._counted.append((samples, self._pending))
        self._pending, self._states = None, []

    @contextmanager
    def of_batch(self, size: int) -> Iterator[None]:
        """Around all parts of a batch; logs once at its end."""
        self._counted.clear()
        try:
            yield
        finally:
            self._put_back()
        names = dict.fromkeys(name for _, said in self._counted for name, _, _ in said)
        for name in names:
            said = [(n, value, how) for n, part in self._counted for key, value, how in part if key == name]
            how = said[-1][2]
            if how.get("batch_size") is None:
                how = {**how, "batch_size": size}
            self._log(name, _joined(name, said), **how)

    def _take(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        named = dict(zip(self._places, args, strict=False))
        assert self._pending is not None
        self._pending.append((name, value.detach() if isinstance(value, torch.Tensor) else value, {**named, **kwargs}))

    def _put_back(self) -> None:
        """Undoes what a part that did not count did to metrics."""
        for metric, state in self._states:
            for key, value in state.items():
                setattr(metric, key, value)
        self._pending, self._states = None, []


def _state(metric: Any) -> dict[str, Any]:
    """torchmetrics' accumulated state, and what it derives from it."""
    kept = [*metric._defaults, "_update_count", "_computed"]
    return {key: _copied(getattr(metric, key)) for key in kept if hasattr(metric, key)}


def _copied(value: Any) -> Any:
    """A list state (predictions of an epoch, say) only grows, by tensors that stay as they are: copying those for
    each part would take time and memory by the length of the epoch."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [*value] if isinstance(value, list) else value


def _joined(name: str, said: list[tuple[int, Any, dict[str, Any]]]) -> Any:
    """One value for the batch. A metric's object has seen all parts already."""
    if not all(isinstance(value, (int, float, torch.Tensor)) for _, value, _ in said):
        return said[-1][1]
    fx = said[-1][2].get("reduce_fx", "mean")
    join = _JOINS.get(getattr(fx, "__name__", str(fx)))
    if join is None:
        raise RuntimeRefusal(
            f"ElasticStrategy log {name!r}: reduce_fx is {fx!r}, want mean, sum, min or max: the parts of a batch are "
            "joined by it; nothing was trained"
        )
    values = torch.stack([torch.as_tensor(value, dtype=torch.float32).flatten().mean() for _, value, _ in said])
    return join(values, torch.tensor([float(n) for n, _, _ in said], device=values.device))
