"""The slot table: saved tensors live here, the graph holds only (run, index).

One Run is one call of a segment in one microbatch. Pack puts a tensor into the run's slots; emptying a
slot is dropping the reference, which any thread may do at any moment: what the running operator uses is
held by the operator itself. Unpack of an empty slot runs the segment again (replay.py).

Concurrency: the training thread packs and unpacks; any thread may call Run.empty. Each of its effects is
one assignment under the interpreter lock, and unpack never trusts a slot to stay full.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from lull._errors import RuntimeRefusal
from lull._torch.inputs import Inputs, storage_key
from lull._torch.replay import Ambient, Held, Movers, run_again
from lull._torch.segments import Segment

if TYPE_CHECKING:
    from lull._torch.device import Device


class SavedTensorEdited(RuntimeRefusal, RuntimeError):
    """A tensor needed for gradients was edited in place; autograd raises RuntimeError for it."""


def _edited(name: str, seen: int, wanted: int) -> SavedTensorEdited:
    return SavedTensorEdited(
        f"elastic.backward {name}: a tensor saved for the gradient is at version {seen}, want {wanted}: "
        "it was edited in place after it was saved; the microbatch is undone"
    )


class Kept:
    """A saved tensor that is kept as it is: a parameter, a block's input, or one outside all blocks."""

    __slots__ = ("name", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        self.tensor = tensor.detach()
        self.version = tensor._version
        self.name = name

    def get(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise _edited(self.name, self.tensor._version, self.version)
        return self.tensor


class Ref:
    """What the graph holds in place of a slot's tensor. When the graph lets go, the slot is emptied."""

    __slots__ = ("index", "run")

    def __init__(self, run: Run, index: int) -> None:
        self.run = run
        self.index = index

    def get(self) -> torch.Tensor:
        return self.run.read(self.index)

    def __del__(self) -> None:
        self.run.release(self.index)


class Run:
    """One call of a segment: its slots, and what it takes to compute them again."""

    def __init__(self, table: Table, segment: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.table = table
        self.segment = segment
        self.name = segment.name
        self.inputs: Inputs | None = Inputs(segment.name, args, kwargs)
        self.ambient: Ambient | None = Ambient.now(table.device)
        self.slots: list[torch.Tensor | None] = []
        self.alive: list[bool] = []
        self.metas: list[tuple[torch.Size, torch.dtype, int]] = []
        self.keys: set[int] = set(self.inputs.keys)
        self.stuck = table.stuck.get(segment.name) or self.inputs.opaque
        """Why this run must not be emptied, or ""."""
        self.open = True
        self.left = 0
        self.need = 0
        """Bytes that a second run takes, from the first: filled in when the call returns."""
        self.saved = 0
        """Bytes packed into slots, views counted as often as they were packed."""
        self.hooks: saved_tensors_hooks | None = None
        self.read_before = False
        """Whether backward has come to this run."""
        self.versions: list[tuple[torch.nn.Module, str, torch.Tensor | None, int]] = []
        """The segment's buffers when the call began, to see which it changes."""
        self.moving: list[Held] = []
        """Those that are known to change, with the values from which a second run starts."""
        self.moved = ""
        """A buffer that changed for the first time in this call: its old value is not known."""

    def pack(self, tensor: torch.Tensor) -> Kept | Ref:
        table = self.table
        table.safe_point()
        key = storage_key(tensor)
        if key == 0 or key in table.fixed or key in self.keys:
            return Kept(tensor, self.name)
        index = len(self.slots)
        self.slots.append(tensor.detach() if self.stuck or table.may_store(tensor) else None)
        self.metas.append((tensor.shape, tensor.dtype, tensor._version))
        self.alive.append(True)
        self.left += 1
        self.saved += tensor.nbytes
        return Ref(self, index)

    def read(self, index: int) -> torch.Tensor:
        table = self.table
        if not self.read_before:
            self.read_before = True
            table.boundary()
        table.safe_point()
        tensor = self.slots[index]
        if tensor is None:
            return self._refill(index)
        version = self.metas[index][2]
        if tensor._version != version:
            raise _edited(self.name, tensor._version, version)
        return tensor

    def _refill(self, index: int) -> torch.Tensor:
        inputs, ambient = self.inputs, self.ambient
        if inputs is None or ambient is None:
            raise RuntimeRefusal(
                f"elastic.backward {self.name}: saved tensor {index} is wanted after its block was let go; "
                "the microbatch is undone"
            )
        if self.moved:
            raise RuntimeRefusal(
                f"elastic.backward {self.name}: its buffer {self.moved} changed for the first time, and its old value, "
                "which running the block again needs, was not kept; want the same call again; the microbatch is undone"
            )
        if inputs.changed():
            raise _edited(f"{self.name} (input of the block)", 1, 0)
        self.table.await_room(self)
        began = time.monotonic()
        fresh = run_again(self, inputs, ambient)
        self.table.recompute_s += time.monotonic() - began
        wanted, version = fresh[index]
        if wanted is None or wanted._version != version:
            raise _edited(self.name, version if wanted is None else wanted._version, version)
        for i, (tensor, saved_at) in enumerate(fresh):
            if tensor is not None and self.slots[i] is None and self.alive[i]:
                shape, dtype, _ = self.metas[i]
                self.metas[i] = (shape, dtype, saved_at)
                self.slots[i] = tensor
        self.table.recomputed += 1
        return wanted

    def release(self, index: int) -> None:
        """The graph needs this slot no more."""
        self.alive[index] = False
        self.slots[index] = None
        self.left -= 1
        if self.left == 0 and not self.open:
            self.let_go()

    def let_go(self) -> None:
        self.inputs = None
        self.ambient = None
        self.moving = []

    def empty(self) -> bool:
        """Empties every slot; False when there was nothing to empty or it may not be."""
        if self.stuck or self._edited() or (self.inputs is not None and self.inputs.changed()):
            return False
        emptied = False
        slots = self.slots
        for i in range(len(slots)):
            if slots[i] is not None:
                slots[i] = None
                emptied = True
        return emptied

    def _edited(self) -> bool:
        """Whether a slot was edited in place after it was saved: kept, so that reading it says so."""
        return any(t is not None and t._version != meta[2] for t, meta in zip(self.slots, self.metas, strict=False))

    def full(self) -> bool:
        """Whether emptying would let go of anything."""
        return not self.stuck and any(tensor is not None for tensor in self.slots)


class Table:
    """The runs of one microbatch, in the order of the forward pass."""

    def __init__(
        self,
        device: Device,
        fixed: set[int],
        safe_point: Callable[[], None],
        stuck: dict[str, str],
        movers: Movers,
    ) -> None:
        self.device = device
        self.fixed = fixed
        """Storages of parameters: never slots."""
        self.safe_point = safe_point
        self.runs: list[Run] = []
        self.boundary: Callable[[], None] = lambda: None
        """Called when backward comes to a run: training may pause there."""
        self.recomputed = 0
        self.recompute_s = 0.0
        self.dropped = 0
        self.largest = 0
        self.outside = 0
        """Bytes saved outside all segments."""
        self.may_store: Callable[[torch.Tensor], bool] = lambda tensor: True
        self.await_room: Callable[[Run], None] = lambda run: None
        self.stuck = stuck
        """Segments that must not be emptied, and why."""
        self.movers = movers
        """Buffers that a forward pass was seen to change."""

    def pack_outside(self, tensor: torch.Tensor) -> Kept:
        self.safe_point()
        if storage_key(tensor) not in self.fixed:
            self.outside += tensor.nbytes
        return Kept(tensor, "outside the blocks")

    @staticmethod
    def unpack(handle: Kept | Ref) -> torch.Tensor:
        return handle.get()

    def empty_earliest(self, enough: Callable[[], bool]) -> bool:
        """Empties whole runs, earliest first: backward needs them last. True when enough said so."""
        for run in list(self.runs):
            if enough():
                return True
            if run.empty():
                self.dropped += 1
        return enough()

    def droppable(self) -> bool:
        return any(run.full() for run in self.runs)

    def slot_bytes(self) -> int:
        """Bytes of the distinct storages in slots."""
        seen: dict[int, int] = {}
        for run in self.runs:
            for tensor in list(run.slots):
                if tensor is not None:
                    seen[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return sum(seen.values())

    def input_bytes(self) -> int:
        """Bytes of the blocks' kept inputs: what a suspended microbatch cannot give back."""
        return sum(inputs.bytes() for run in self.runs if (inputs := run.inputs) is not None)

    def clear(self) -> None:
        """Lets everything go, whatever the graph still refers to."""
        for run in self.runs:
            for i in range(len(run.slots)):
                run.slots[i] = None
            run.let_go()
        self.runs.clear()
