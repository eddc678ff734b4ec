"""The slot table: saved tensors live here, the graph holds only (run, index).

One Run is one call of a segment in one microbatch. Pack puts a tensor into a slot; emptying a slot is
dropping its reference, which any thread may do at any moment: what the running operator uses is held by
the operator itself. Unpack of an empty slot runs the segment again (replay.py).

The graph holds the slots, a run knows them weakly: when the graph lets go, tensor and inputs are freed by
reference counts alone. Nothing of Python's runs there on purpose: inside autograd the first line of a
`__del__` is where a pending signal would raise, and be lost (Ctrl-C, a handler of SIGTERM).

Concurrency: the training thread packs and unpacks; any thread may call Run.empty. Each of its effects is
one assignment under the interpreter lock, and unpack never trusts a slot to stay full.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from lull._errors import RuntimeRefusal
from lull._torch.attributes import Attributes
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


class Origin:
    """What it takes to run a block again. The slots of its run hold it; so does the run until its call returned."""

    __slots__ = ("__weakref__", "ambient", "attributes", "inputs", "moving")

    def __init__(self, inputs: Inputs, ambient: Ambient, attributes: Attributes) -> None:
        self.inputs = inputs
        self.ambient = ambient
        self.attributes = attributes
        self.moving: list[Held] = []
        """Buffers that are known to change, with the values from which a second run starts."""

    def changed(self) -> bool:
        """Whether a tensor that a second run would start from was edited in place."""
        return self.inputs.changed() or self.attributes.edited() != ""


class Ref:
    """A slot: what the graph holds in place of a saved tensor."""

    __slots__ = ("__weakref__", "index", "origin", "run", "tensor")

    def __init__(self, run: Run, origin: Origin, index: int, tensor: torch.Tensor | None) -> None:
        self.run = run
        self.origin: Origin | None = origin
        self.index = index
        self.tensor = tensor

    def get(self) -> torch.Tensor:
        return self.run.read(self)


class Run:
    """One call of a segment: its slots, and what it takes to compute them again."""

    def __init__(self, table: Table, segment: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.table = table
        self.segment = segment
        self.name = segment.name
        inputs = Inputs(segment.name, args, kwargs)
        self._open: Origin | None = Origin(inputs, Ambient.now(table.device), Attributes(segment.module))
        self._origin = weakref.ref(self._open)
        self._slots: list[weakref.ref[Ref]] = []
        self.metas: list[tuple[torch.Size, torch.dtype, int]] = []
        self.keys: set[int] = set(inputs.keys)
        self.stuck = table.stuck.get(segment.name) or inputs.opaque
        """Why this run must not be emptied, or ""."""
        self.need = 0
        """Bytes that a second run takes, from the first: filled in when the call returns."""
        self.saved = 0
        """Bytes packed into slots, views counted as often as they were packed."""
        self.hooks: saved_tensors_hooks | None = None
        self.read_before = False
        """Whether backward has come to this run."""
        self.versions: list[tuple[torch.nn.Module, str, torch.Tensor | None, int]] = []
        """The segment's buffers when the call began, to see which it changes."""
        self.moved = ""
        """A buffer that changed for the first time in this call: its old value is not known."""

    def pack(self, tensor: torch.Tensor) -> Kept | Ref:
        table = self.table
        table.safe_point()
        key = storage_key(tensor)
        if key == 0 or key in table.fixed or key in self.keys:
            return Kept(tensor, self.name)
        origin = self._origin()
        if origin is None:  # a hook that outlived its call
            return Kept(tensor, self.name)
        held = tensor.detach() if self.stuck or table.may_store(tensor) else None
        slot = Ref(self, origin, len(self._slots), held)
        self.metas.append((tensor.shape, tensor.dtype, tensor._version))
        self._slots.append(weakref.ref(slot))
        self.saved += tensor.nbytes
        return slot

    @property
    def origin(self) -> Origin | None:
        """None once the call returned and the graph needs none of its slots."""
        return self._origin()

    def alive(self, index: int) -> bool:
        """Whether the graph still needs a slot."""
        return self._slots[index]() is not None

    def live(self) -> Iterator[Ref]:
        """The slots that the graph still needs."""
        for i in range(len(self._slots)):
            if (slot := self._slots[i]()) is not None:
                yield slot

    def close(self) -> None:
        """The call returned: from now on the graph alone holds what a second run needs."""
        self._open = None

    def read(self, slot: Ref) -> torch.Tensor:
        table = self.table
        if not self.read_before:
            self.read_before = True
            table.boundary()
        table.safe_point()
        tensor = slot.tensor
        if tensor is None:
            return self._refill(slot)
        version = self.metas[slot.index][2]
        if tensor._version != version:
            raise _edited(self.name, tensor._version, version)
        return tensor

    def _refill(self, slot: Ref) -> torch.Tensor:
        origin = slot.origin
        if origin is None:
            raise RuntimeRefusal(
                f"elastic.backward {self.name}: saved tensor {slot.index} is wanted after its block was let go; "
                "the microbatch is undone"
            )
        if self.moved:
            raise RuntimeRefusal(
                f"elastic.backward {self.name}: its buffer {self.moved} changed for the first time, and its old value, "
                "which running the block again needs, was not kept; want the same call again; the microbatch is undone"
            )
        if origin.inputs.changed():
            raise _edited(f"{self.name} (input of the block)", 1, 0)
        if name := origin.attributes.edited():
            raise _edited(f"{self.name} (attribute {name})", 1, 0)
        self.table.await_room(self)
        began = time.monotonic()
        fresh = run_again(self, origin)
        self.table.recompute_s += time.monotonic() - began
        wanted, version = fresh[slot.index]
        if wanted is None or wanted._version != version:
            raise _edited(self.name, version if wanted is None else wanted._version, version)
        for other in self.live():
            tensor, saved_at = fresh[other.index] if other.index < len(fresh) else (None, 0)
            if tensor is not None and other.tensor is None:
                shape, dtype, _ = self.metas[other.index]
                self.metas[other.index] = (shape, dtype, saved_at)
                other.tensor = tensor
        self.table.recomputed += 1
        return wanted

    def let_go(self) -> None:
        """Frees everything, whatever the graph still refers to."""
        self._open = None
        for slot in self.live():
            slot.tensor = None
            slot.origin = None

    def empty(self) -> bool:
        """Empties every slot; False when there was nothing to empty or it may not be."""
        origin = self.origin
        if self.stuck or origin is None or self._edited() or origin.changed():
            return False
        emptied = False
        for slot in self.live():
            if slot.tensor is not None:
                slot.tensor = None
                emptied = True
        return emptied

    def _edited(self) -> bool:
        """Whether a slot was edited in place after it was saved: kept, so that reading it says so."""
        return any(
            (tensor := slot.tensor) is not None and tensor._version != self.metas[slot.index][2] for slot in self.live()
        )

    def full(self) -> bool:
        """Whether emptying would let go of anything."""
        return not self.stuck and any(slot.tensor is not None for slot in self.live())


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
            for slot in run.live():
                if (tensor := slot.tensor) is not None:
                    seen[storage_key(tensor)] = tensor.untyped_storage().nbytes()
        return sum(seen.values())

    def input_bytes(self) -> int:
        """Bytes of the blocks' kept inputs: what a suspended microbatch cannot give back."""
        return sum(origin.inputs.bytes() for run in self.runs if (origin := run.origin) is not None)

    def clear(self) -> None:
        """Lets everything go, whatever the graph still refers to."""
        for run in self.runs:
            run.let_go()
        self.runs.clear()
