"""Module hooks that open and close runs. They are on the model only while elastic.backward runs.

So a model can be copied, pickled and evaluated at any other time as if Lull were not there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle

from lull._torch.inputs import storage_key
from lull._torch.replay import hold, moving_buffers
from lull._torch.segments import Segment
from lull._torch.slots import Run, Table
from lull._torch.tail import Tail


def _top_pack_hook() -> object:
    """The innermost saved-tensor pack hook, to see whether the user's own scope is in between."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top[0] if top is not None else None


class SegmentHooks:
    """Installed with `with`; `table` is the microbatch that is in its forward pass, or None."""

    def __init__(self, segments: list[Segment], boundary: Callable[[], None]) -> None:
        self._segments = segments
        self._boundary = boundary
        self._handles: list[RemovableHandle] = []
        self._open: Run | None = None
        self._pack: object = None
        self._just_left: Segment | None = None
        """A segment whose call has ended, until the hooks of others have run too."""
        self.table: Table | None = None
        self.tail: Tail | None = None
        """Told of the blocks' calls, and may answer them."""

    def __enter__(self) -> SegmentHooks:
        for segment in self._segments:
            enter, leave = self._enter(segment), self._leave(segment)
            module = segment.module
            self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            self._handles.append(module.register_forward_hook(leave, prepend=True, with_kwargs=True, always_call=True))
            if self.tail is not None and segment.block:
                self._handles.append(module.register_forward_hook(self._left(segment)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        """Takes all hooks off. Harmless when repeated."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.end_forward()

    def outer(self, table: Table) -> saved_tensors_hooks:
        """The scope around the whole forward pass of one microbatch."""
        self.table = table
        self._open = None
        self._pack = table.pack_outside
        return saved_tensors_hooks(self._pack, table.unpack)

    def end_forward(self) -> None:
        """The forward pass is over, however it ended. PyTorch runs no forward hook after a BaseException
        (a discard, Ctrl-C): the scope of the block that was open is then left here."""
        self.table = None
        run, self._open = self._open, None
        if run is not None and run.hooks is not None:
            run.hooks.__exit__(None, None, None)
            run.hooks = None

    def _mine(self) -> bool:
        """Whether a segment that is called now is ours: in our forward pass, in no other scope."""
        return (
            self.table is not None and self._open is None and torch.is_grad_enabled() and _top_pack_hook() is self._pack
        )

    def _enter(self, segment: Segment) -> Callable[..., None]:
        def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._mine():
                if self.tail is not None and segment.block and self.tail.take(segment, args, kwargs):
                    return
                self._boundary()
                self._begin(segment, args, kwargs)

        return enter

    def _begin(self, segment: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        table = self.table
        assert table is not None
        run = Run(table, segment, args, kwargs)
        origin = run.origin
        assert origin is not None
        origin.moving = hold(moving_buffers(segment.module, table.movers))
        run.keys.update(storage_key(held.tensor) for held in origin.moving if held.tensor is not None)
        run.need = -table.device.pool.in_use()
        run.hooks = saved_tensors_hooks(run.pack, table.unpack)
        run.versions = _buffer_versions(segment.module)
        table.runs.append(run)
        self._open = run
        run.hooks.__enter__()

    def _leave(self, segment: Segment) -> Callable[..., None]:
        def leave(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            run = self._open
            if run is None or run.segment is not segment or run.hooks is None:
                return
            self._open = None
            run.hooks.__exit__(None, None, None)
            run.hooks = None
            self._just_left = segment
            self._close(run, args, kwargs)

        return leave

    def _left(self, segment: Segment) -> Callable[..., None]:
        """Behind the hooks of others, which may change what a block gives."""

        def left(module: torch.nn.Module, args: Any, output: Any) -> None:
            ours, self._just_left = self._just_left is segment, None
            if ours and self.tail is not None:
                self.tail.left(segment, output)

        return left

    def _close(self, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the call did besides its output: to its own input, to its buffers."""
        table, origin = run.table, run.origin
        assert origin is not None
        run.need = max(0, run.need + table.device.pool.in_use(), run.saved) + table.largest
        if origin.inputs.changed() or origin.inputs.grew(args, kwargs):
            run.stuck = "it edits its own input"
        if name := origin.attributes.edited():
            run.stuck = run.stuck or f"it edits its attribute {name} in place"
        if run.stuck:
            table.stuck[run.name] = run.stuck
        known = {(id(held.owner), held.name) for held in origin.moving}
        for owner, name, before, version in run.versions:
            buffer = owner._buffers.get(name)
            if before is None or (buffer is before and before._version == version):
                continue
            table.movers.add((id(owner), name))
            if (id(owner), name) not in known:
                run.moved = name
                run.stuck = run.stuck or "it changed a buffer for the first time"
        run.versions = []
        run.close()


def _buffer_versions(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str, torch.Tensor | None, int]]:
    return [
        (owner, name, buffer, 0 if buffer is None else buffer._version)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
    ]
