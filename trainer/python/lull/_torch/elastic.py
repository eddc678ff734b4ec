"""Elastic: the user's handle, and the Runtime that the agent drives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from lull._agent import HelloState
from lull._errors import RuntimeRefusal
from lull._protocol import Ack, Budget, Pace, Progress, Report
from lull._torch.account import by_category
from lull._torch.batch import batch_size, part, refuse_edits, sample_copy
from lull._torch.device import Device
from lull._torch.dry import Floor, measure_floor, state_tensors
from lull._torch.grads import Gradients
from lull._torch.hooks import SegmentHooks
from lull._torch.inputs import storage_key
from lull._torch.model import Model
from lull._torch.orders import Discard, Orders, prefer_this_thread
from lull._torch.pace import Pacer
from lull._torch.replay import Movers
from lull._torch.rise import FloorWatch
from lull._torch.segments import Segment
from lull._torch.separable import check_separable
from lull._torch.shares import shares
from lull._torch.slots import Table
from lull._torch.stats import Stats, cost_rows
from lull._torch.trained import trained
from lull._torch.undo import Snapshot

LossFn = Callable[[Any], torch.Tensor]

_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


_TRIES = 16
"""How often a single sample that should fit is tried, undone each time, before that is an error."""


_LEAVING = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Never taken for what discarding a microbatch brings with it."""


def _ran_out(error: BaseException) -> bool:
    """Whether the allocator refused; PyTorch's CPU allocator raises a plain RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Elastic:
    """What lull.attach returns. Use it from the training thread; orders arrive on another."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        device: Device,
        segments: list[Segment],
        *,
        release: str,
        budget: int,
        min_budget: int,
        baseline: int,
        trusted: bool = True,
        on_drain: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.segments = segments
        self.baseline = baseline
        self.draining = False
        """True once the sidecar asked this job to checkpoint and leave."""
        self.floor: Floor | None = None
        self.stats = Stats()
        self.memory = Model()
        self.orders = Orders(device.pool, release, budget, clock)
        self.agent: Any = None
        self.on_close: Callable[[], None] = lambda: None
        """What attach undoes when this job detaches."""
        self._on_measured: Callable[[], None] = lambda: None
        self._on_drain = on_drain
        self._trusted = trusted
        self._turn = threading.Lock()
        self._watch = FloorWatch(self._outside, self._ask_floor)
        self._min_budget = min_budget
        self._clock = clock
        self._pacer = Pacer(clock)
        self._params = trained(model, optimizer)
        self._gradients = Gradients(self._params)
        self._hooks = SegmentHooks(segments, self._boundary)
        self._stuck: dict[str, str] = {}
        self._movers: Movers = set()
        self._table: Table | None = None
        self._closed = False
        self._preferred = False
        self._owned: tuple[int, dict[str, int]] = (-1, {})
        self._most = 1 << 30
        """Samples that a microbatch may have after one that should have fitted did not; doubles again."""
        self._failures = 0
        """Microbatches undone in a row."""
        self._count_steps()

    # ---- what the user calls ----

    def backward(
        self,
        batch: Any,
        loss_fn: LossFn,
        *,
        reduction: str = "mean",
        weights: torch.Tensor | None = None,
        scaler: Any = None,
    ) -> torch.Tensor:
        """Adds the gradient of loss_fn over the batch to .grad and returns the loss, detached.

        The batch is a tensor, or tuples, lists and dicts of tensors, with samples along dimension 0. It runs
        in microbatches that fit the budget. `reduction` is what loss_fn does over its samples: "mean" or
        "sum"; `weights` has one number a sample where loss_fn divides by their sum (tokens, say). `scaler`
        is a torch.amp.GradScaler. Call optimizer.step() afterwards as always.
        """
        if reduction not in ("mean", "sum"):
            raise RuntimeRefusal(
                f"elastic.backward reduction: got {reduction!r}, want mean or sum; nothing was trained"
            )
        if not self._turn.acquire(blocking=False):
            raise RuntimeRefusal(
                "elastic.backward: called while it runs in another thread, want one at a time; nothing was trained"
            )
        try:
            size = batch_size(batch)
            share = shares(size, reduction, weights)
            self._prepare(batch, size, loss_fn, reduction, weights)
            return self._train(batch, size, loss_fn, share, scaler)
        finally:
            self._turn.release()

    def _prepare(self, batch: Any, size: int, loss_fn: LossFn, reduction: str, weights: torch.Tensor | None) -> None:
        """Before the first batch: does the loss separate, what is the floor. Before each: what is trained."""
        now = trained(self.model, self.optimizer)
        if [*map(id, now)] != [*map(id, self._params)]:  # frozen, unfrozen or swapped since
            self._gradients.close()
            self._params, self._gradients = now, Gradients(now)
        if not self._trusted and size > 1:
            self._trusted = True
            before = Snapshot(self.device, self.model, None)
            with self._caches_off():
                check_separable(self.model, loss_fn, batch, size, reduction, weights)
            before.restore()
        if self.floor is None:
            one = sample_copy(batch, 1, size)
            self._measure(one, loss_fn)
            refuse_edits(one)

    def _train(
        self, batch: Any, size: int, loss_fn: LossFn, share: Callable[[int, int], float], scaler: Any
    ) -> torch.Tensor:
        """One batch, in microbatches that fit."""
        started = self._clock()
        self.orders.begin_batch()
        self._gradients.begin_batch()
        total: torch.Tensor | None = None
        done = 0
        whole = False
        try:
            with self._hooks, self._caches_off():
                while done < size:
                    samples = self._next_size(size - done)
                    micro = part(batch, done, done + samples, size)
                    loss = self._attempt(micro, loss_fn, share(done, done + samples), samples, scaler)
                    if loss is not None:
                        done += samples
                        total = loss if total is None else total + loss
            whole = True
        finally:
            self._gradients.end_batch(whole)
            self.orders.end_batch()
        assert total is not None
        if self.device.pool.capped and self.floor is not None:
            self.floor = self._watch.check(self.floor)
        self.stats.batches += 1
        self.stats.batch_s.append(self._clock() - started)
        self.stats.loss = float(total)
        return total

    def close(self) -> None:
        """Detaches: says bye to the sidecar and leaves model and optimizer as they were."""
        if self._closed:
            return
        self._closed = True
        if self.agent is not None:
            self.agent.close()
        self._pacer.close()
        self.orders.close()
        self._gradients.close()
        self.on_close()
        self._step_handle.remove()
        self.device.pool.set_cap(1 << 62)
        self.device.pool.trim(0)

    def use_agent(self, agent: Any, wait: Callable[[Any], None]) -> None:
        """Starts the agent once the floor is measured: nothing is granted before it is known."""
        self.agent = agent

        def start() -> None:
            agent.start()
            wait(agent)
            self._hold_until_granted()

        self._on_measured = start

    def _hold_until_granted(self) -> None:
        """A sidecar that said welcome decides what this job may have: until its first budget, the min budget.

        The agent asks for a report as soon as it is welcomed, so this is looked at once more there.
        """
        if self.agent is not None and self.agent.connected and self.orders.epoch == 0:
            self.orders.lower_to(self.min_budget)

    # ---- one microbatch ----

    def _next_size(self, left: int) -> int:
        """As many samples as fit under the ceiling now: a later budget may be lower."""
        return min(self.memory.samples_within(self.orders.ceiling, left), self._most)

    def _attempt(self, micro: Any, loss_fn: LossFn, share: float, samples: int, scaler: Any) -> torch.Tensor | None:
        """One microbatch: commits and returns its loss, or leaves no trace and returns None."""
        snapshot = Snapshot(self.device, self.model, self._movers)
        table = self._new_table()
        pool = self.device.pool
        pool.reset_peak()
        base = pool.in_use()
        started, epoch = self._clock(), self.orders.epoch
        self.orders.begin(table, samples)
        failed = False
        loss = None
        try:
            loss = self._pass(table, micro, loss_fn, share, scaler)
        except Discard:
            failed = True
        except BaseException as error:
            discarding = self.orders.discarding
            if isinstance(error, _LEAVING) or not (discarding or _ran_out(error)):
                self._undo(table, snapshot)
                if discarding:
                    self.orders.discarded(samples)
                else:
                    self.orders.end()
                raise
            failed = True
        took = self._clock() - started
        if failed:
            self._undo(table, snapshot)
            self._discarded(samples, took)
            return None
        self._failures = 0
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

    def _pass(self, table: Table, micro: Any, loss_fn: LossFn, share: float, scaler: Any) -> torch.Tensor:
        """Forward and backward, with large allocations in the pool."""
        before = self.device.pool.enable(True)
        try:
            with self._hooks.outer(table):
                loss = loss_fn(micro)
            self._hooks.end_forward()
            _check_loss(loss)
            scaled = loss if share == 1.0 else loss * share
            (scaled if scaler is None else scaler.scale(scaled)).backward()
            return scaled.detach()
        finally:
            self._hooks.end_forward()
            self.device.pool.enable(before)

    def _new_table(self) -> Table:
        fixed = {storage_key(t) for t in (*self.model.parameters(), *self._params, *self.model.buffers())}
        self._table = Table(self.device, fixed, lambda: None, self._stuck, self._movers)
        return self._table

    def _undo(self, table: Table, snapshot: Snapshot, *, keep_made: bool = False) -> None:
        self._finish(table)
        self._gradients.undo()
        self._movers |= snapshot.restore(keep_made=keep_made)

    def _finish(self, table: Table) -> None:
        self.stats.recomputed += table.recomputed
        self.stats.recompute_s += table.recompute_s
        self.stats.dropped += table.dropped
        table.clear()
        self._table = None

    def _discarded(self, samples: int, took: float) -> None:
        """After an undone microbatch: count it, learn from it, and wait if even one sample is too much."""
        stats, tried = self.stats, self.orders.ceiling
        stats.discards += 1
        stats.samples_discarded += samples
        stats.lost_s += took
        if not self.orders.ordered:
            stats.mispredicted += 1
            self.memory.caught()
            self._most = max(1, samples // 2)
        self.orders.discarded(samples)
        self._failures += 1
        if samples > 1 or not self.memory.known:
            return
        fits = tried >= self.memory.bytes(1)
        if (fits and self._failures > _TRIES) or not (fits or self.orders.epoch or self.agent):
            raise RuntimeRefusal(
                f"elastic.backward budget: one sample does not fit into {tried} bytes, "
                f"want about {int(self.memory.bytes(1))}; the microbatch is undone"
            )
        while not fits and not self.orders.await_ceiling(tried, 1.0) and not self._closed:
            pass

    def _boundary(self) -> None:
        self._pacer.gate()

    @contextmanager
    def _caches_off(self) -> Iterator[None]:
        """A Hugging Face model in train mode would give its blocks a cache that a second run changes."""
        config: Any = getattr(self.model, "config", None)
        on = getattr(config, "use_cache", None) is True
        if on:
            config.use_cache = False
        try:
            yield
        finally:
            if on:
                config.use_cache = True

    # ---- the floor ----

    def _measure(self, one: Any, loss_fn: LossFn) -> None:
        """The dry step, then the agent may say hello with a known floor."""
        was = self.orders.ceiling
        counted, self.stats = self.stats, Stats()
        state = self.optimizer
        taken: list[Snapshot] = []

        def one_pass() -> None:
            first = not taken
            snapshot = Snapshot(self.device, self.model, None)
            taken.append(snapshot)
            whole = False
            table = self._new_table()
            pool = self.device.pool
            pool.reset_peak()
            before = pool.in_use()
            try:
                with self._hooks, self._caches_off():
                    if first:
                        self._plain_pass(table, one, loss_fn)
                    else:
                        self._pass(table, one, loss_fn, 1.0, None)
                        self.memory.observe(1, pool.peak() - before)
                self._movers |= snapshot.moved()
                whole = True
            finally:
                self._undo(table, snapshot, keep_made=first and whole)

        grads = [p.grad for p in self._params]
        self._gradients.begin_batch()
        try:
            self.floor = measure_floor(self.device, self.baseline, state, one_pass)
            taken[0].unmake(self._movers)
        finally:
            self._gradients.end_batch(False)
            for param, grad in zip(self._params, grads, strict=True):
                param.grad = grad
            self.stats = counted
        self.device.settle(self.baseline + self.floor.bytes)
        self.orders.pool.set_cap(was)
        self._on_measured()

    def _outside(self) -> int:
        """Bytes outside the pool, beyond the baseline."""
        pool = self.device.pool
        return self.device.bytes() - self.baseline - (pool.resident() if pool.capped else pool.in_use())

    def _ask_floor(self, bytes: int, timeout: float) -> bool:
        return self.agent is None or bool(self.agent.request_floor(bytes, timeout))

    def _plain_pass(self, table: Table, one: Any, loss_fn: LossFn) -> None:
        """The first pass, outside the pool: what a model makes once stays out of what can be given back."""
        try:
            with self._hooks.outer(table):
                loss = loss_fn(one)
        finally:
            self._hooks.end_forward()
        _check_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def _count_steps(self) -> None:
        def stepped(*_: Any) -> None:
            self.stats.steps += 1

        self._step_handle = self.optimizer.register_step_post_hook(stepped)

    # ---- the Runtime that the agent drives ----

    def hello(self) -> HelloState:
        if threading.current_thread() is not threading.main_thread() and not self._preferred:
            self._preferred = True  # the agent's thread, once
            prefer_this_thread()
        floor, pool = self.floor, self.device.pool
        return HelloState(
            device=self.device.label,
            floor=floor.bytes if floor else 0,
            floor_known=floor is not None,
            ceiling=self.orders.ceiling,
            held=pool.resident(),
            baseline=self.baseline,
            min_budget=self.min_budget,
            suspended=0,
            memory_model=self.memory.wire(),
            progress=Progress(self.stats.samples, self.stats.steps, self.stats.loss),
        )

    @property
    def min_budget(self) -> int:
        """The configured one, else what one sample takes."""
        return self._min_budget or int(self.memory.bytes(1))

    def apply(self, order: Budget, reply: Callable[[Ack], None]) -> None:
        self.orders.apply(order, reply)

    def pace(self, pace: Pace) -> None:
        self._pacer.set(pace)

    def drain(self) -> None:
        self.draining = True
        if self._on_drain is not None:
            self._on_drain()

    def lease_ended(self) -> None:
        self.orders.lower_to(min(self.orders.grant, self.min_budget))

    def report(self) -> Report:
        self._hold_until_granted()
        stats, orders = self.stats, self.orders
        return Report(
            bytes=self.bytes_by_category(),
            samples=stats.samples,
            step=stats.steps,
            microbatch=stats.microbatch,
            microbatch_ms=round(stats.microbatch_ms, 3),
            batch_ms=round(stats.batch_ms, 3),
            loss=stats.loss if stats.loss is not None and abs(stats.loss) < float("inf") else None,
            rate_curve=stats.rate_curve(),
            costs=cost_rows(orders.costs, stats.lost_s, stats.discards),
            recomputed=stats.recomputed,
            work_lost_sample_s=round(stats.work_lost_s, 6),
            memory_model=self.memory.wire(),
            model_error=round(self.memory.error, 1),
        )

    def bytes_by_category(self) -> dict[str, int]:
        """Where the device's bytes are. Slots and inputs are those of the running microbatch."""
        outside_floor = by_category(self.device, self._table, self.baseline, self.floor.bytes if self.floor else 0)
        return {**self._floor_bytes(), **outside_floor}

    def _floor_bytes(self) -> dict[str, int]:
        """Counted again only when optimizer state may have appeared: orders wait while a report is made."""
        states = len(self.optimizer.state)
        if self._owned[0] != states:
            own = self.device.own_bytes
            parts = {
                "parameters": own(list(self.model.parameters())),
                "gradients": own(self._gradients.tensors()),
                "optimizer": own(state_tensors(self.optimizer)),
            }
            self._owned = (states, parts)
        return self._owned[1]


def _check_loss(loss: object) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise RuntimeRefusal(
            "elastic.backward loss_fn: want one number that depends on the model; the microbatch is undone"
        )
