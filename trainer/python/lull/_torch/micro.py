"""One microbatch: it commits, or leaves no trace."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from lull._errors import RuntimeRefusal
from lull._greeting import say_bytes
from lull._torch.batch import part
from lull._torch.device import Device
from lull._torch.grads import Gradients
from lull._torch.hooks import SegmentHooks
from lull._torch.inputs import storage_key
from lull._torch.leaves import Given, Leaves
from lull._torch.model import Model
from lull._torch.orders import Orders
from lull._torch.owed import Discard
from lull._torch.pace import Pacer
from lull._torch.replay import Movers
from lull._torch.segments import Segment
from lull._torch.slots import Table
from lull._torch.stats import Stats
from lull._torch.tail import Share, Tail, is_constant
from lull._torch.trained import trained
from lull._torch.undo import Forwards, Snapshot

LossFn = Callable[[Any], torch.Tensor]

_log = logging.getLogger("lull")

_TRIES = 16
"""How often the smallest microbatch is undone where it should fit and no order came, before that is an error."""


def ran_out(error: BaseException) -> bool:
    """Whether the allocator refused. PyTorch's CPU allocator raises a plain RuntimeError, and so may the driver."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error) if isinstance(error, RuntimeError) else ""
    return "DefaultCPUAllocator: " in text or text.startswith(("CUDA out of memory", "CUDA error: out of memory"))


def _drop_locals(error: BaseException) -> None:
    """Lets go of what the frames of an error hold, whole graphs of tensors; its lines stay."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__context__


class NoGradient(RuntimeRefusal):
    """A loss from which no backward pass can start."""


class _Failure(NamedTuple):
    """What a microbatch that is undone ran into, as it was then: later orders change it."""

    ceiling: int
    """The lowest since the microbatch began."""
    ordered: bool
    """Whether it is undone for an order."""
    disturbed: bool
    """Whether an order came while it ran."""
    error: BaseException | None
    """The allocator's, if it was one."""


class Microbatches:
    """Runs microbatches of one model under the ceiling, and knows what they cost. Training thread only."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: Device,
        segments: list[Segment],
        *,
        release: str,
        budget: int,
        tail: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.segments = segments
        self.stats = Stats()
        self.memory = Model()
        self.orders = Orders(device.pool, release, budget, clock)
        self.agent: Any = None
        self._clock = clock
        self._pacer = Pacer(clock, lambda: self.orders.wanted)
        self.orders.on_owed, self.orders.working = self._pacer.nudge, self._pacer.working
        self._params = self._trained()
        self._gradients = Gradients(self._params)
        self._hooks = SegmentHooks(segments, self._boundary)
        self._tail = self._hooks.tail = Tail(tail) if tail else None
        self._stuck: dict[str, str] = {}
        self._movers: Movers = set()
        self._leaves = Leaves()
        self._given = Given(())
        self._known: set[int] = set()
        """What may get a gradient from the next backward pass, by id."""
        self._table: Table | None = None
        self._closed = False
        self._reached = False
        """Whether a loss of this batch depended on the model."""
        self._most = 1 << 30
        """Samples that a microbatch may have after one that should have fitted did not; doubles again."""
        self._failures = 0
        """The smallest microbatches undone in a row for want of memory, without an order."""
        self._fewest = 1
        """Samples of the smallest microbatch: 2 for a model that takes statistics over samples."""
        self._resident = 0
        """Bytes that the smallest microbatch made resident in the dry step."""
        self._waiting_said = False

    def _trained(self) -> list[torch.nn.Parameter]:
        """What a backward pass adds gradients to."""
        return trained(self.model, self.optimizer)

    @property
    def least(self) -> int:
        """The ceiling in bytes under which the smallest microbatch fits: what it made resident, in whole units of the
        pool, and one unit more, since those that are partly used lie otherwise each time."""
        unit = self.device.pool.unit
        return (math.ceil(max(self.memory.bytes(self._fewest), self._resident) / unit) + 1) * unit

    @property
    def _alone(self) -> bool:
        """Whether nobody may give this job another budget."""
        return (self.agent is None or bool(self.agent.refused)) and not self.orders.epoch

    def _next_size(self, left: int) -> int:
        """As many samples as fit under the ceiling now: a later budget may be lower."""
        fit = max(min(self.memory.samples_within(self.orders.ceiling, left), self._most), self._fewest)
        if 0 < left - fit < self._fewest:  # too few would be left over
            return fit - 1 if fit > self._fewest else left
        return min(fit, left)

    def _attempt(self, micro: Any, loss_fn: LossFn, share: Share, samples: int, scaler: Any) -> torch.Tensor | None:
        """One microbatch: commits and returns its loss, or leaves no trace and returns None."""
        self._given.keep()
        snapshot = Snapshot(self.device, self.model, self._movers)
        table = self._new_table()
        pool = self.device.pool
        pool.reset_peak()
        base = pool.in_use()
        started, epoch = self._pacer.working(), self.orders.epoch
        failed = False
        error: BaseException | None = None
        loss = None
        try:
            self.orders.begin(table, samples)
            loss = self._pass(table, micro, loss_fn, share, samples, scaler, self._look)
        except Discard:
            failed = True
        except BaseException as caught:
            discarding = self.orders.discarding
            # What is no Exception (Ctrl-C, a handler's own) is never taken for what discarding brings with it.
            if not isinstance(caught, Exception) or not (discarding or ran_out(caught)):
                self._undo(table, snapshot)
                if discarding:
                    self.orders.discarded(samples)
                else:
                    self.orders.end(whole=False)
                raise
            failed = True
            error = caught
            _drop_locals(caught)
        took = self._pacer.working() - started
        if failed:
            failure = _Failure(self.orders.lowest, self.orders.ordered, self.orders.epoch != epoch, error)
            del error  # it refers to this frame
            self._undo(table, snapshot)
            self._discarded(samples, took, failure)
            del failure
            return None
        self._failures = 0
        self._waiting_said = False
        self._most = min(2 * self._most, 1 << 30)
        peak = pool.peak() - base
        self._gradients.commit()
        disturbed = table.dropped or table.recomputed
        self._finish(table)
        self.orders.end()
        self.stats.ran(samples, took)
        if disturbed and self.orders.epoch == epoch:
            self.memory.caught()  # the ceiling stood still, and yet slots had to be emptied
        if not disturbed:
            self.memory.observe(samples, peak)
            self.stats.rate(samples, peak, took)
        return loss

    def _look(self, roots: Sequence[torch.Tensor]) -> None:
        """Before anything is added to a gradient."""
        self._leaves.refuse_strangers(roots, self._known)

    def _pass(
        self,
        table: Table,
        micro: Any,
        loss_fn: LossFn,
        share: Share,
        samples: int,
        scaler: Any,
        look: Callable[[Sequence[torch.Tensor]], None],
    ) -> torch.Tensor:
        """Forward and backward, with large allocations in the pool; `look` sees the loss in between.

        Where a library changes a module's forward for a call, an exception leaves it changed: it is put back.
        """
        forwards = Forwards(self.model)
        before = self.device.pool.enable(True)
        try:
            if self._tail is not None:
                return self._chunked_pass(self._tail, table, micro, loss_fn, share, samples, scaler, look)
            with self._hooks.outer(table):
                loss = loss_fn(micro)
            self._hooks.end_forward()
            if self._is_constant(loss):
                return loss * share(0, samples)
            check_loss(loss)
            look([loss])
            self._reached = True
            return _backward(loss, share(0, samples), scaler)
        finally:
            forwards.put_back()
            self._hooks.end_forward()
            self.device.pool.enable(before)

    def _chunked_pass(
        self,
        tail: Tail,
        table: Table,
        micro: Any,
        loss_fn: LossFn,
        share: Share,
        samples: int,
        scaler: Any,
        look: Callable[[Sequence[torch.Tensor]], None],
    ) -> torch.Tensor:
        """Forward to the last block; forward and backward of the rest, some samples at a time; backward through the
        blocks. `look` sees what that starts from."""
        try:
            forwards = Forwards(self.model)
            with self._hooks.outer(table):
                constant: torch.Tensor | None = tail.trunk(loss_fn, micro)
            forwards.put_back()
            self._hooks.end_forward()
            if constant is not None and self.memory.known:
                return constant * share(0, samples)
            total: torch.Tensor | None = None
            for start, stop in tail.chunks(samples):
                weight = share(start, stop)
                if weight == 0.0:  # all masked
                    continue
                with self._hooks.outer(table):
                    loss = tail.chunk(self.segments, loss_fn, part(micro, start, stop, samples), (start, stop, samples))
                self._hooks.end_forward()
                if self._is_constant(loss):
                    done = loss * weight
                else:
                    check_loss(loss)
                    self._leaves.refuse_strangers([loss], self._known | tail.known())
                    self._reached = True
                    done = _backward(loss, weight, scaler)
                    tail.collect(start, stop)
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

    def _new_table(self) -> Table:
        fixed = {storage_key(t) for t in (*self.model.parameters(), *self._params, *self.model.buffers())}
        self._table = Table(self.device, fixed, lambda: None, self._stuck, self._movers)
        self._table.boundary = self._boundary
        return self._table

    def _undo(self, table: Table, snapshot: Snapshot, *, keep_made: bool = False) -> None:
        self._finish(table)
        self._gradients.undo()
        self._given.restore()
        self._movers |= snapshot.restore(keep_made=keep_made)

    def _finish(self, table: Table) -> None:
        self.stats.recomputed += table.recomputed
        self.stats.recompute_s += table.recompute_s
        self.stats.dropped += table.dropped
        table.clear()
        self._table = None

    def _discarded(self, samples: int, took: float, failure: _Failure) -> None:
        """After an undone microbatch: count it, learn from it, and wait if even the smallest one is too much."""
        stats = self.stats
        stats.discards += 1
        stats.samples_discarded += samples
        stats.lost_s += took
        if not failure.ordered:
            stats.mispredicted += 1
            self.memory.caught()
            self._most = max(1, samples // 2)
        self.orders.discarded(samples)
        if samples > self._fewest or not self.memory.known:
            return
        fits = failure.ceiling >= self.least
        if fits and not failure.ordered and not failure.disturbed:
            self._failures += 1
        if self._failures > _TRIES or (self._alone and not fits):
            raise RuntimeRefusal(
                f"elastic.backward budget: a microbatch of {samples} does not fit into "
                f"{say_bytes(failure.ceiling)}, want about {say_bytes(self.least)} in budget= or LULL_BUDGET (a number "
                "without a unit is bytes); the microbatch is undone"
            ) from failure.error
        if not fits:
            self._wait_for_more(failure.ceiling)

    def _wait_for_more(self, than: int) -> None:
        """Until the ceiling is higher; a wait of more than a second is said once."""
        while not self.orders.await_ceiling(than, 1.0) and not self._closed:
            self._look_at_the_floor()  # what rose outside the pool may be what stands in the way
            self._say_it_waits(than)

    def _say_it_waits(self, ceiling: int) -> None:
        """Once, until a microbatch has run."""
        if not self._waiting_said:
            self._waiting_said = True
            _log.warning(
                "elastic.backward: a microbatch of %d does not fit into %s, want about %s; training waits for a "
                "larger budget",
                self._fewest,
                say_bytes(ceiling),
                say_bytes(self.least),
            )

    def _look_at_the_floor(self) -> None: ...

    def _boundary(self) -> None:
        self.device.boundary()
        self.orders.make_room()
        self._pacer.gate()

    @contextmanager
    def _caches_off(self) -> Iterator[None]:
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
