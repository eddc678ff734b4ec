"""A block's plain attributes: what a call finds in them, so that a second run finds the same.

A model may set them for each call (a condition, a temperature, a mode), and a block may change its own (a counter).
Those of the types that inputs.py takes for fixed, and tensors, are remembered when a call begins, put back while the
block runs again, and left as they were afterwards. What lies inside a list, a dict or an object of the user's is not.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from lull._torch.inputs import FIXED

_INTERNAL = frozenset(vars(torch.nn.Module())) - {"training"}
"""What every module has: parameters, buffers, submodules and hooks are not attributes in this sense."""

_REMEMBERED = (torch.Tensor, *FIXED)


def _plain(owner: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(owner).items() if name not in _INTERNAL}


class _Tensor:
    """A tensor attribute, kept without its graph."""

    __slots__ = ("alias", "first", "grad", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.first = weakref.ref(tensor)
        self.alias = tensor.detach()
        self.grad = tensor.requires_grad
        self.version = tensor._version

    def edited(self) -> bool:
        return self.alias._version != self.version

    def put_back(self, now: object) -> torch.Tensor:
        """The tensor itself while the attribute still is it; else a leaf with its values."""
        first = self.first()
        if first is not None and first is now:
            return first
        return self.alias.detach().requires_grad_(self.grad)


class Attributes:
    """What the attributes of a block's modules were when a call began. Used as a context around a second run."""

    __slots__ = ("_now", "_seen")

    def __init__(self, module: torch.nn.Module) -> None:
        self._seen = [
            (
                owner,
                {
                    name: _Tensor(value) if isinstance(value, torch.Tensor) else value
                    for name, value in _plain(owner).items()
                    if isinstance(value, _REMEMBERED)
                },
            )
            for owner in module.modules()
        ]
        self._now: list[tuple[torch.nn.Module, dict[str, Any]]] = []

    def edited(self) -> str:
        """The name of a tensor attribute that was edited in place since the call began, or ""."""
        for _, seen in self._seen:
            for name, value in seen.items():
                if type(value) is _Tensor and value.edited():
                    return name
        return ""

    def __enter__(self) -> None:
        self._now = [(owner, _plain(owner)) for owner, _ in self._seen]
        for (owner, seen), (_, now) in zip(self._seen, self._now, strict=True):
            at = vars(owner)
            for name in now.keys() - seen.keys():
                if isinstance(now[name], _REMEMBERED):
                    del at[name]  # made since
            for name, value in seen.items():
                at[name] = value.put_back(now.get(name)) if type(value) is _Tensor else value

    def __exit__(self, *exc: object) -> None:
        for owner, now in self._now:
            at = vars(owner)
            for name in _plain(owner).keys() - now.keys():
                del at[name]  # made by the second run
            at.update(now)
        self._now = []
