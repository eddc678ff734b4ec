"""One microbatch: it commits, or leaves no trace."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from lull._errors import RuntimeRefusal
from lull._greeting import say_bytes
from lull._torch.device import Device
from lull._torch.grads import Gradients
from lull._torch.leaves import Given
from lull._torch.orders import Orders
from lull._torch.owed import Discard
from lull._torch.pace import Pacer
from lull._torch.passes import Micro, Passes
from lull._torch.segments import Segment
from lull._torch.slots import Table
from lull._torch.stats import Stats
from lull._torch.tail import Tail
from lull._torch.trained import trained
from lull._torch.undo import Snapshot

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


class Microbatches(Passes):
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
        tail: Tail | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(model, device, segments, tail)
        self.optimizer = optimizer
        self._params = self._trained()
        self.stats = Stats()
        self.orders = Orders(device.pool, release, budget, clock)
        self.agent: Any = None
        self._clock = clock
        self._pacer = Pacer(clock, lambda: self.orders.wanted)
        self.orders.on_owed, self.orders.working = self._pacer.nudge, self._pacer.working
        self._gradients = Gradients(self._params)
        self._given = Given(())
        self._closed = False
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

    def _attempt(self, micro: Micro) -> torch.Tensor | None:
        """One microbatch: commits and returns its loss, or leaves no trace and returns None."""
        samples = micro.samples
        self._given.keep()
        snapshot = Snapshot(self.device, self.model, self.movers)
        table = self.new_table()
        pool = self.device.pool
        pool.reset_peak()
        base = pool.in_use()
        started, epoch = self._pacer.working(), self.orders.epoch
        failed = False
        error: BaseException | None = None
        loss = None
        try:
            self.orders.begin(table, samples)
            loss = self._pass(table, micro, self._look)
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
        self.finish(table)
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

    def _between_chunks(self) -> None:
        self._gradients.widen()

    def _undo(self, table: Table, snapshot: Snapshot, *, keep_made: bool = False) -> None:
        self.finish(table)
        self._gradients.undo()
        self._given.restore()
        self.movers |= snapshot.restore(keep_made=keep_made)

    def finish(self, table: Table) -> None:
        """A microbatch is over, whatever became of it: counts what it did and frees its slots."""
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
