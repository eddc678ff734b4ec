"""Forward and backward of one microbatch: in one piece, or with its tail (tail.py) in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._torch.device import Device
from lull._torch.hooks import SegmentHooks
from lull._torch.inputs import storage_key
from lull._torch.leaves import Leaves
from lull._torch.model import Model
from lull._torch.replay import Movers
from lull._torch.segments import Segment
from lull._torch.shares import Share
from lull._torch.slots import Table
from lull._torch.tail import Tail, is_constant
from lull._torch.undo import Forwards

LossFn = Callable[[Any], torch.Tensor]

Look = Callable[[Sequence[torch.Tensor]], None]
"""Called with what a backward pass starts from, before anything is added to a gradient."""


class NoGradient(RuntimeRefusal):
    """A loss from which no backward pass can start."""


@dataclass(frozen=True)
class Micro:
    """A microbatch: what is to be computed."""

    batch: Any
    loss_fn: LossFn
    share: Share
    """The factor of the loss of some of its samples within the batch's loss."""
    samples: int
    scaler: Any = None
    weighed: int | None = None
    """Tokens of each sample that weights= has a number for."""


class Passes:
    """Runs passes of one model. Training thread only."""

    def __init__(self, model: torch.nn.Module, device: Device, segments: list[Segment], tail: Tail | None) -> None:
        self.model = model
        self.device = device
        self.segments = segments
        self.memory = Model()
        self.hooks = SegmentHooks(segments, self._boundary)
        self.hooks.tail = self._tail = tail
        self.movers: Movers = set()
        """The buffers that were seen to change."""
        self._params: list[torch.nn.Parameter] = []
        """What a backward pass adds gradients to."""
        self._stuck: dict[str, str] = {}
        self._leaves = Leaves()
        self._known: set[int] = set()
        """What may get a gradient from the next backward pass, by id."""
        self._table: Table | None = None
        self._reached = False
        """Whether a loss of this batch depended on the model."""

    def new_table(self) -> Table:
        """An empty slot table, the running microbatch's from now on."""
        fixed = {storage_key(t) for t in (*self.model.parameters(), *self._params, *self.model.buffers())}
        self._table = Table(self.device, fixed, lambda: None, self._stuck, self.movers)
        self._table.boundary = self._boundary
        return self._table

    @contextmanager
    def caches_off(self) -> Iterator[None]:
        """A Hugging Face model in train mode would give its blocks a cache that a second run changes."""
        configs: list[Any] = [getattr(module, "config", None) for module in self.model.modules()]
        on = [config for config in configs if getattr(config, "use_cache", None) is True]
        for config in on:
            config.use_cache = False
        try:
            yield
        finally:
            for config in on:
                config.use_cache = True

    def _boundary(self) -> None: ...

    def _between_chunks(self) -> None: ...

    def _pass(self, table: Table, micro: Micro, look: Look) -> torch.Tensor:
        """Forward and backward, with large allocations in the pool; `look` sees the loss in between.

        Where a library changes a module's forward for a call, an exception leaves it changed: it is put back.
        """
        forwards = Forwards(self.model)
        before = self.device.pool.enable(True)
        try:
            if self._tail is not None:
                return self._chunked_pass(self._tail, table, micro, look, forwards)
            with self.hooks.outer(table):
                loss = micro.loss_fn(micro.batch)
            self.hooks.end_forward()
            share = micro.share(0, micro.samples)
            if self._is_constant(loss):
                return loss * share
            check_loss(loss)
            look([loss])
            self._reached = True
            return _backward(loss, share, micro.scaler)
        finally:
            forwards.put_back()
            self.hooks.end_forward()
            self.device.pool.enable(before)

    def _chunked_pass(self, tail: Tail, table: Table, micro: Micro, look: Look, forwards: Forwards) -> torch.Tensor:
        """Forward to the last block; forward and backward of the rest, a chunk at a time; backward through the blocks.
        `look` sees what that starts from."""
        try:
            with self.hooks.outer(table):
                constant: torch.Tensor | None = tail.trunk(micro.loss_fn, micro.batch)
            forwards.put_back()
            self.hooks.end_forward()
            if constant is not None and self.memory.known:
                return constant * micro.share(0, micro.samples)
            total: torch.Tensor | None = None
            for cut in tail.cuts(micro.batch, micro.samples, micro.weighed):
                weight = cut.share(micro.share)
                if weight == 0.0:  # all masked
                    continue
                with self.hooks.outer(table):
                    loss = tail.chunk(self.segments, micro.loss_fn, cut.of(micro.batch), cut)
                self.hooks.end_forward()
                if self._is_constant(loss):
                    done = loss * weight
                else:
                    check_loss(loss)
                    self._leaves.refuse_strangers([loss], self._known | tail.known())
                    self._reached = True
                    done = _backward(loss, weight, micro.scaler)
                    tail.collect(cut)
                    self._between_chunks()
                del loss
                total = done if total is None else total + done
            roots = tail.roots()
            if roots:
                look([root for root, _ in roots])
                torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
            assert total is not None
            return total
        finally:
            tail.forget()

    def _is_constant(self, loss: object) -> bool:
        """Whether a microbatch's loss depends on no parameter: all its samples are masked, and its gradient is zero.
        Not in the dry step, whose sample must have one; a batch without any is refused at its end."""
        return self.memory.known and is_constant(loss)


def _backward(loss: torch.Tensor, share: float, scaler: Any) -> torch.Tensor:
    """Adds the gradient of a part of the batch; its part of the batch's loss."""
    scaled = loss if share == 1.0 else loss * share
    (scaled if scaler is None else scaler.scale(scaled)).backward()
    return scaled.detach()


def check_loss(loss: object) -> None:
    """Raises RuntimeRefusal unless loss_fn returned what backward can start from."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise NoGradient(
            "elastic.backward loss_fn: want one number that depends on the model; the microbatch is undone"
        )
