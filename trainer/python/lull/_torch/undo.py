"""What a microbatch changes besides gradients, and how it is put back: random state and moving buffers."""

from __future__ import annotations

import logging

import torch

from lull._torch.device import Device
from lull._torch.dice import Dice
from lull._torch.replay import Movers, hold, moving_buffers

_log = logging.getLogger("lull")


class Forwards:
    """Each module's forward: libraries (transformers' check_model_inputs) change it for a call,
    and leave it changed where an exception passes through."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = [(module, module.__dict__.get("forward")) for module in model.modules()]

    def put_back(self) -> None:
        """As it was; None stands for the class's own."""
        for module, forward in self._before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward


class Snapshot:
    """The state before a microbatch: which tensor each buffer of the model is, and the values of those that move.

    `movers` are the buffers that were seen to change, None holds the value of every one. A value that is
    written in place for the first time in a microbatch that is undone cannot be put back: that is logged.
    """

    def __init__(self, device: Device, model: torch.nn.Module, movers: Movers | None) -> None:
        self._device = device
        self._dice = Dice.now(device)
        modules = list(model.modules())
        every = {(id(m), name) for m in modules for name in m._buffers}
        self._names = [(m, dict(m._buffers)) for m in modules]
        self._versions = {id(b): b._version for _, names in self._names for b in names.values() if b is not None}
        self._held = hold(moving_buffers(model, every if movers is None else movers))

    def moved(self) -> Movers:
        """The buffers that became another tensor or got another value."""
        return self._noticed() | {(id(h.owner), h.name) for h in self._held if not _same(h.tensor, h.value)}

    def _noticed(self) -> Movers:
        """The same, except for values written without raising a version."""
        return {
            (id(owner), name)
            for owner, names in self._names
            for name, before in names.items()
            if before is not None and self._changed(owner._buffers.get(name), before)
        }

    def _changed(self, now: torch.Tensor | None, before: torch.Tensor) -> bool:
        return now is not before or before._version != self._versions[id(before)]

    def restore(self, *, keep_made: bool = False) -> Movers:
        """Puts every buffer's tensor back into its place, and the value into those that are held.

        Returns what changed and was not held, to be held from now on.
        `keep_made` leaves what did not exist before: what a model makes once, on its first pass.
        """
        self._dice.restore(self._device)
        late = self._noticed() - {(id(h.owner), h.name) for h in self._held}
        for owner, names in self._names:
            made = _made(owner, names) if keep_made else {}
            _put_back(owner, {**names, **made})
        with torch.no_grad():
            for held in self._held:
                if held.tensor is not None and held.value is not None:
                    held.tensor.copy_(held.value)
        if late:
            _log.warning(
                "undo: %d buffers changed for the first time in a microbatch that is undone; a value written in "
                "place stays changed, it is put back from the next microbatch on",
                len(late),
            )
        return late

    def unmake(self, movers: Movers) -> None:
        """Of what restore(keep_made=True) left, takes away what moved again: it is no cache."""
        for owner, names in self._names:
            made = _made(owner, names)
            kept = {name: b for name, b in made.items() if (id(owner), name) not in movers}
            if len(kept) < len(made):
                _put_back(owner, {**names, **kept})


def _same(tensor: torch.Tensor | None, value: torch.Tensor | None) -> bool:
    if tensor is None or value is None:
        return tensor is value
    return tensor.shape == value.shape and bool(torch.equal(tensor, value))


def _made(owner: torch.nn.Module, names: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    return {n: b for n, b in owner._buffers.items() if b is not None and names.get(n) is None}


def _put_back(owner: torch.nn.Module, names: dict[str, torch.Tensor | None]) -> None:
    """In place: others may hold the dict. Tensors are compared by what they are, not by value."""
    now = owner._buffers
    if now.keys() == names.keys() and all(now[name] is b for name, b in names.items()):
        return
    owner._buffers.clear()
    owner._buffers.update(names)
