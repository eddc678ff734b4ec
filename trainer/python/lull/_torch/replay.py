"""Runs a segment again from its kept input, so that its saved tensors come out as the first time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from lull._errors import RuntimeRefusal
from lull._torch.dice import Dice
from lull._torch.inputs import storage_key
from lull._torch.kernels import Chosen, Kernels, kernels_now

if TYPE_CHECKING:
    from lull._torch.device import Device
    from lull._torch.slots import Origin, Run

Moving = list[tuple[torch.nn.Module, str]]
"""Buffers that a forward pass changes, such as BatchNorm's running statistics."""

Movers = set[tuple[int, str]]
"""The buffers that were seen to change: the module's id and the buffer's name."""


@dataclass(frozen=True)
class Held:
    """A moving buffer at one moment: which tensor it was, and a copy of its value; or that it was None."""

    owner: torch.nn.Module
    name: str
    tensor: torch.Tensor | None
    value: torch.Tensor | None


def hold(buffers: Moving) -> list[Held]:
    """Copies what the buffers hold now."""
    now = [(owner, name, owner._buffers[name]) for owner, name in buffers]
    return [Held(owner, name, b, None if b is None else b.detach().clone()) for owner, name, b in now]


@dataclass(frozen=True)
class Ambient:
    """What a forward pass depends on besides its arguments and its module: random state, autocast, the kernels of
    attention that may be taken."""

    dice: Dice
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    cache: bool
    kernels: Kernels

    @classmethod
    def now(cls, device: Device) -> Ambient:
        kinds = ("cpu",) if device.kind == "cpu" else ("cpu", device.kind)
        casts = tuple((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)
        return cls(Dice.now(device), casts, torch.is_autocast_cache_enabled(), kernels_now())


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


def moving_buffers(module: torch.nn.Module, seen: Movers) -> Moving:
    """Buffers below module that its forward pass changes.

    Running statistics are written without raising a version, so a module that has them goes by their name.
    """
    return [
        (owner, name)
        for owner in module.modules()
        if owner._buffers
        for running in [any(name.startswith("running_") for name in owner._buffers)]
        for name, buffer in owner._buffers.items()
        if (running and buffer is not None) or (id(owner), name) in seen
    ]


class _Swapped:
    """Puts copies of what buffers held at the first run in their place, so that a second run starts as the
    first did and changes the copies only.

    Writing the old values back instead would raise the buffers' versions, which autograd's own saved
    references to them are checked against.
    """

    def __init__(self, held: list[Held]) -> None:
        self._held = held
        self._originals = [h.owner._buffers.get(h.name) for h in held]
        # Kept to the end: a storage that the run lets go of would lend its key to another tensor.
        self._copies = [None if h.value is None else h.value.clone() for h in held]
        self.keys = {storage_key(copy) for copy in self._copies if copy is not None}

    def __enter__(self) -> _Swapped:
        for held, copy in zip(self._held, self._copies, strict=True):
            held.owner._buffers[held.name] = copy
        return self

    def __exit__(self, *exc: object) -> None:
        for held, original in zip(self._held, self._originals, strict=True):
            held.owner._buffers[held.name] = original


class _Enough(BaseException):
    """Ends a second run once it has saved all that is wanted. Not an Exception, so that the model's own
    handlers let it pass."""


class _Collector:
    """The pack hook of a second run: keeps what is still wanted and compares it with the first run.

    It ends the run at the last tensor that is wanted: what a block computes after that (in a transformer
    the last projection) is not saved by anyone.
    """

    def __init__(self, run: Run, keys: set[int]) -> None:
        self._run = run
        self._keys = keys
        self._last = max(slot.index for slot in run.live())
        self.tensors: Saved = []

    def pack(self, tensor: torch.Tensor) -> None:
        run = self._run
        run.table.safe_point()
        key = storage_key(tensor)
        if key == 0 or key in run.table.fixed or key in self._keys:
            return
        index = len(self.tensors)
        if index >= len(run.metas):
            raise differs(run, f"more than the {len(run.metas)} tensors of its first run")
        shape, dtype, _ = run.metas[index]
        if tensor.shape != shape or tensor.dtype != dtype:
            raise differs(run, f"{tensor.dtype} {tuple(tensor.shape)} where its first run saved {dtype} {tuple(shape)}")
        self.tensors.append((tensor.detach() if run.alive(index) else None, tensor._version))
        if index == self._last:
            raise _Enough

    def unpack(self, handle: object) -> torch.Tensor:
        """Backward came to the graph of a second run: the block left a tensor of it somewhere."""
        raise RuntimeRefusal(
            f"elastic.backward block {self._run.name}: a tensor of its second run is part of a loss, want only what "
            "its first run made: the block keeps tensors (a list of auxiliary losses) that a second run adds to; "
            "return them from the block instead, or overwrite them in each call; the microbatch is undone"
        )


def differs(run: Run, seen: str) -> RuntimeRefusal:
    """The refusal of a block whose second run is not its first; `seen` is what it saved."""
    return RuntimeRefusal(
        f"elastic.backward block {run.name}: run again it saved {seen}, want the same: the block is not "
        "deterministic; something changes between two runs with the same input and random state (what it keeps in a "
        "list or an object, a generator of its own, a kernel that is not deterministic, a mode that is on around it, "
        "torch.compile around loss_fn, where blocks compiled one by one are wanted): name blocks= without it, or "
        "blocks=[]; the microbatch is undone"
    )


Saved = list[tuple[torch.Tensor | None, int]]
"""By slot: the tensor, None where the graph needs it no more, and its version when it was saved."""


def run_again(run: Run, origin: Origin) -> Saved:
    """The run's saved tensors, computed again.

    Called from inside an unpack hook: an error is raised through, no hook scope of the caller is left.
    """
    device, module = run.table.device, run.segment.module
    now = Dice.now(device)
    try:
        origin.ambient.dice.restore(device)
        with (
            _Swapped(origin.moving) as swapped,
            origin.attributes,
            torch.enable_grad(),
            _Casts(origin.ambient),
            Chosen(origin.ambient.kernels),
        ):
            collector = _Collector(run, origin.inputs.keys | swapped.keys)
            with saved_tensors_hooks(collector.pack, collector.unpack):
                origin.inputs.call(module.forward)
        raise differs(run, f"{len(collector.tensors)} tensors where its first run saved {len(run.metas)}")
    except _Enough:
        return collector.tensors
    finally:
        now.restore(device)
