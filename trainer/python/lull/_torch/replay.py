"""Runs a segment again from its kept input, so that its saved tensors come out as the first time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from lull._errors import RuntimeRefusal
from lull._torch.inputs import Inputs, storage_key

if TYPE_CHECKING:
    from lull._torch.device import Device
    from lull._torch.slots import Run

Moving = list[tuple[torch.nn.Module, str]]
"""Buffers that a forward pass changes, such as BatchNorm's running statistics."""


@dataclass(frozen=True)
class Ambient:
    """What a forward pass depends on besides its arguments: random state and autocast."""

    rng: tuple[torch.Tensor, ...]
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def now(cls, device: Device) -> Ambient:
        kinds = ("cpu",) if device.kind == "cpu" else ("cpu", device.kind)
        casts = tuple((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)
        return cls(device.rng(), casts, torch.is_autocast_cache_enabled())


class _Casts:
    """Enters every device type's autocast state."""

    def __init__(self, ambient: Ambient) -> None:
        self._contexts = [
            torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=ambient.cache)
            for kind, enabled, dtype in ambient.autocast
        ]

    def __enter__(self) -> None:
        for context in self._contexts:
            context.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*exc)


def moving_buffers(module: torch.nn.Module, seen: set[int]) -> Moving:
    """Buffers below module that its forward pass changes.

    Running statistics are written without raising a version, so they go by their name; `seen` holds the
    ids of modules one of whose buffers was seen to change.
    """
    return [
        (owner, name)
        for owner in module.modules()
        if id(owner) in seen or any(name.startswith("running_") for name in owner._buffers)
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]


class _Swapped:
    """Puts copies in the place of buffers, so that a second run changes the copies only.

    Writing the old values back instead would raise the buffers' versions, which autograd's own saved
    references to them are checked against.
    """

    def __init__(self, buffers: Moving) -> None:
        self._buffers = buffers
        self._originals = [owner._buffers[name] for owner, name in buffers]
        self.keys: set[int] = set()

    def __enter__(self) -> _Swapped:
        for (owner, name), original in zip(self._buffers, self._originals, strict=True):
            if original is not None:
                copy = original.detach().clone()
                owner._buffers[name] = copy
                self.keys.add(storage_key(copy))
        return self

    def __exit__(self, *exc: object) -> None:
        for (owner, name), original in zip(self._buffers, self._originals, strict=True):
            owner._buffers[name] = original


class _Collector:
    """The pack hook of a second run: keeps what is still wanted and compares it with the first run."""

    def __init__(self, run: Run, keys: set[int]) -> None:
        self._run = run
        self._keys = keys
        self.tensors: Saved = []

    def pack(self, tensor: torch.Tensor) -> None:
        run = self._run
        run.table.safe_point()
        key = storage_key(tensor)
        if key == 0 or key in run.table.fixed or key in self._keys:
            return
        index = len(self.tensors)
        if index >= len(run.metas):
            raise _differs(run, f"more than the {len(run.metas)} tensors of its first run")
        shape, dtype, _ = run.metas[index]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise _differs(
                run, f"{tensor.dtype} {tuple(tensor.shape)} where its first run saved {dtype} {tuple(shape)}"
            )
        self.tensors.append((tensor.detach() if run.alive[index] else None, tensor._version))


def _differs(run: Run, seen: str) -> RuntimeRefusal:
    return RuntimeRefusal(
        f"elastic.backward block {run.name}: run again it saved {seen}, want the same: the block is not "
        "deterministic; name other blocks= or none of it; the microbatch is undone"
    )


def _never(handle: object) -> torch.Tensor:
    raise AssertionError("the graph of a second run is never walked")


Saved = list[tuple[torch.Tensor | None, int]]
"""By slot: the tensor, None where the graph needs it no more, and its version when it was saved."""


def run_again(run: Run, inputs: Inputs, ambient: Ambient) -> Saved:
    """The run's saved tensors, computed again.

    Called from inside an unpack hook: an error is raised through, no hook scope of the caller is left.
    """
    device, module = run.table.device, run.segment.module
    now = device.rng()
    moving = moving_buffers(module, run.table.movers)
    try:
        device.set_rng(ambient.rng)
        with _Swapped(moving) as swapped, torch.enable_grad(), _Casts(ambient):
            collector = _Collector(run, inputs.keys | swapped.keys)
            with saved_tensors_hooks(collector.pack, _never):
                inputs.call(module.forward)
    finally:
        device.set_rng(now)
    if len(collector.tensors) != len(run.metas):
        raise _differs(run, f"{len(collector.tensors)} tensors where its first run saved {len(run.metas)}")
    return collector.tensors
