"""Elastic: the user's handle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lull._errors import RuntimeRefusal
from lull._floor import Answer
from lull._torch.batch import batch_size, part, refuse_edits, sample_copy, spread_copy, tensors_in
from lull._torch.call import Call
from lull._torch.compiled import keep_out
from lull._torch.device import Device
from lull._torch.floor import measure
from lull._torch.foreign import refuse_hooks
from lull._torch.grads import Gradients, buffer_bytes
from lull._torch.hand import Hand, Pieces
from lull._torch.leaves import Given, known_leaves
from lull._torch.nature import by_nature
from lull._torch.passes import LossFn, Micro, NoGradient
from lull._torch.rise import PATIENCE_S, FloorWatch
from lull._torch.rows import check_rows
from lull._torch.runtime import RuntimeSide
from lull._torch.scopes import Scopes
from lull._torch.segments import Segment
from lull._torch.separable import check_separable, lengths, places
from lull._torch.shares import Share, of_samples, shares
from lull._torch.tail import Tail
from lull._torch.tail_check import check_tail
from lull._torch.undo import Snapshot
from lull._torch.unused import Unused

_log = logging.getLogger("lull")

_NEEDS_MORE = "more than 1 value per channel"
"""In PyTorch's error where batch statistics are asked of a single sample."""


_LOOK_S = 0.25
"""Seconds of a batch after which what lies outside the pool is looked at again, between two of its microbatches."""


def _within(share: Share, start: int, a: int, b: int, tokens: tuple[int, int] | None = None) -> float:
    """The factor of samples a to b of the microbatch that begins at `start`."""
    return share(start + a, start + b, tokens)


class Elastic(RuntimeSide):
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
        tail: Tail | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            model,
            optimizer,
            device,
            segments,
            release=release,
            budget=budget,
            min_budget=min_budget,
            baseline=baseline,
            on_drain=on_drain,
            tail=tail,
            clock=clock,
        )
        self.on_close: Callable[[], None] = lambda: None
        """What attach undoes when this job detaches."""
        self._on_measured: Callable[[], None] = lambda: None
        self._trusted = self._trusting = trusted
        self._asked_uneven = trusted
        self._state_per_byte = 0.0
        """Bytes of optimizer state for a byte of parameters, as the dry step showed."""
        self._turn = threading.Lock()
        self._watch = FloorWatch(
            self._outside,
            self._ask_floor,
            epoch=lambda: self.orders.epoch,
            found=self._take_off_the_excess,
            clock=clock,
        )
        self._looked = clock()
        self._unused = Unused()
        self._count_steps()

    def backward(
        self,
        batch: Any,
        loss_fn: LossFn,
        *,
        reduction: str = "mean",
        weights: torch.Tensor | None = None,
        scaler: Any = None,
        shared: bool = False,
    ) -> torch.Tensor:
        """Adds the gradient of loss_fn over the batch to .grad and returns the loss, detached.

        The batch is a tensor, or tuples, lists, mappings and dataclasses of tensors, with samples along dimension 0. It
        runs in microbatches that fit the budget. `reduction` is what loss_fn does over its samples: "mean" or
        "sum"; `weights` has one number a sample where loss_fn divides by their sum (tokens, say), or one
        for each token of each sample, in the order of the blocks' output. `scaler` is a torch.amp.GradScaler. Call
        optimizer.step() afterwards as always.

        In a job of several ranks every rank calls it, and gradient and loss are those of the ranks' batches together;
        with `shared` each rank gives the same batch, and they share out its samples among themselves.

        When loss_fn raises, that error comes through, and .grad is what it was before the call: None. If .grad held
        gradients (several calls add up), the microbatches that were done stay added to them, and a warning says
        how many samples that are: call zero_grad() before you go on.
        """
        self._unused.called()
        if self._closed:
            raise RuntimeRefusal(
                "elastic.backward: this handle is closed, want a new one (lull.attach) or loss.backward(); nothing was "
                "trained"
            )
        if reduction not in ("mean", "sum"):
            raise RuntimeRefusal(
                f"elastic.backward reduction: got {reduction!r}, want mean or sum; nothing was trained"
            )
        if self.device.capturing():
            raise RuntimeRefusal(
                "elastic.backward: called while a CUDA graph is captured, want it outside: a graph is replayed at the "
                "addresses of its capture, and orders give those back; nothing was trained"
            )
        if self._turn.locked():
            raise RuntimeRefusal(
                "elastic.backward: called while it runs in another thread, want one at a time; nothing was trained"
            )
        with self._turn:
            scopes = Scopes()
            try:
                return self._batch(Call(batch, loss_fn, reduction, *of_samples(weights), scaler, shared))
            finally:
                self.hooks.remove()
                self.device.pool.enable(False)
                scopes.restore()

    def _batch(self, call: Call) -> torch.Tensor:
        """What backward does once it is its turn."""
        size = batch_size(call.batch)
        share = shares(size, call.reduction, call.weights, call.tokens)
        self._prepare(call, size)
        return self._train(call, size, share)

    def _prepare(self, call: Call, size: int) -> None:
        """Before the first batch: does the loss separate, what is the floor. Before each: what is trained."""
        batch, loss_fn = call.batch, call.loss_fn
        now = self._trained()
        if [*map(id, now)] != [*map(id, self._params)]:  # frozen, unfrozen or swapped since
            self._retrain(now)
        self._gradients.refuse_changed()
        self._gradients.refuse_foreign_hooks()
        if self.floor is None:
            keep_out()
        uneven = size > 1 and not self._asked_uneven and lengths(batch, size) is not None
        if size > 1 and (not self._trusted or uneven):
            before = Snapshot(self.device, self.model, None)
            try:
                with self.caches_off():
                    if not self._trusted:
                        check_rows(self.model, loss_fn, batch, size)
                    check_separable(self.model, loss_fn, batch, size, call.reduction, call.weights)
            finally:
                before.restore()
            first, self._trusted, self._asked_uneven = not self._trusted, True, self._asked_uneven or uneven
            if first and (found := by_nature(self.model)):
                _log.info(
                    "gradients equal those of the same microbatches undisturbed, not of one pass over the batch: %s",
                    "; ".join(found),
                )
        if self._tail is not None:
            check_tail(self, self._tail, call, size)
        if self.floor is None:
            self._find_floor(batch, size, loss_fn)

    def _retrain(self, now: list[torch.nn.Parameter]) -> None:
        """Other parameters from now on. What the new ones need is asked for before it is taken."""
        known = {*map(id, self._params)}
        fresh = [p for p in now if id(p) not in known]
        refuse_hooks(self.model, fresh, trusted=self._trusting, where="elastic.backward")
        if self.floor is not None:
            extra = buffer_bytes(fresh) + self._state_per_byte * sum(p.nbytes for p in fresh)
            self._raise_floor(self._watch.claim(self.floor, int(extra), self._wait_for_room).bytes)
        self._gradients.close()
        self._params, self._gradients = now, Gradients(now)

    def _wait_for_room(self) -> bool:
        """A moment in which room may come; False when this job is closed."""
        self.orders.await_ceiling(self.orders.ceiling, PATIENCE_S)
        return not self._closed

    def _train(self, call: Call, size: int, share: Share) -> torch.Tensor:
        """One batch, in microbatches that fit."""
        started = self._clock()
        hand = Hand(size)
        self._begin(call.batch)
        self._gradients.begin_batch()
        whole = False
        try:
            total = self._run(call, size, share, hand)
            self._look_at_the_floor()  # may wait for an answer: who interrupts it finds the batch as if it had failed
            whole = True
        finally:
            if self._gradients.end_batch(whole) and not whole and hand.finished:
                _log.warning(
                    "elastic.backward: it ended after %d of %d samples, which stay added to the gradients that .grad "
                    "held before; call zero_grad() before you go on, or they count twice in a second try",
                    hand.finished,
                    size,
                )
            self.orders.end_batch()
        assert total is not None
        self.stats.batch(self._clock() - started, float(total))
        return total

    def _begin(self, batch: Any) -> None:
        """A batch begins, but for its gradients."""
        self.orders.begin_batch()
        given = [*tensors_in(batch)]
        self._known, self._given = known_leaves(self._params, given), Given(given)
        self._reached = False
        self._leaves.begin_batch()

    def _run(self, call: Call, size: int, share: Share, hand: Pieces) -> torch.Tensor | None:
        """Microbatches, until the hand has no more; their loss, or None where nothing counted."""
        total: torch.Tensor | None = None
        with self.hooks, self.caches_off():
            while (piece := hand.next(self._next_size)) is not None:
                start, stop = piece
                weight = share(start, stop)
                if weight == 0.0:  # all masked: its own mean would be 0/0, and nothing of it counts
                    hand.done(stop - start)
                    continue
                micro = part(call.batch, start, stop, size)
                of_micro = partial(_within, share, start)
                loss = self._attempt(Micro(micro, call.loss_fn, of_micro, stop - start, call.scaler, call.weighed))
                if loss is not None:
                    hand.done(stop - start)
                    total = loss if total is None else total + loss
                    self._look_now_and_then()
        if total is not None and not self._reached and not call.shared:
            raise RuntimeRefusal(
                "elastic.backward loss_fn: no sample of the batch has a loss that depends on the model, want one at "
                "least, or no call for such a batch; nothing was trained"
            )
        return total

    def _look_now_and_then(self) -> None:
        """Between two microbatches: a batch may be long."""
        now = self._clock()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._look_at_the_floor()

    def _look_at_the_floor(self) -> None:
        """While no microbatch runs: what lies outside the pool may have risen."""
        if self.device.pool.capped and self.floor is not None:
            self._raise_floor(self._watch.check(self.floor).bytes)
            self._take_off_the_excess()

    def _take_off_the_excess(self) -> None:
        self._outside_bytes = self._watch.uncovered
        self.orders.allow(self._allowance)

    def close(self) -> None:
        """Detaches: says bye to the sidecar and leaves model and optimizer as they were."""
        if self._closed:
            return
        self._closed = True
        self._unused.close()
        if self.agent is not None:
            self.agent.close()
        self._pacer.close()
        self.orders.close()
        self._gradients.close()
        self.on_close()
        self._step_handle.remove()
        self.device.pool.set_cap(1 << 62)
        self.device.pool.trim(0)

    @property
    def ranks(self) -> int:
        """Processes that train the model together."""
        return 1

    @property
    def closed(self) -> bool:
        """Whether close was called."""
        return self._closed

    def use_agent(self, agent: Any, wait: Callable[[Any], None]) -> None:
        """Starts the agent once the floor is measured: nothing is granted before it is known."""
        self.agent = agent

        def start() -> None:
            agent.start()
            wait(agent)
            self._hold_until_granted()

        self._on_measured = start

    # ---- the floor ----

    def _find_floor(self, batch: Any, size: int, loss_fn: LossFn) -> None:
        """On one sample, or on two where the model takes statistics over samples and refuses one. A sample that is all
        masked says nothing: another one then."""
        *others, last = places(size)
        try:
            for i in others:
                with suppress(NoGradient):
                    self._measure(spread_copy(batch, (i,), size), loss_fn)
                    return
            self._measure(spread_copy(batch, (last,), size), loss_fn)
            return
        except ValueError as error:
            if size < 2 or _NEEDS_MORE not in str(error):
                raise
        self._fewest = 2
        self._measure(sample_copy(batch, 2, size), loss_fn)

    def _measure(self, few: Any, loss_fn: LossFn) -> None:
        """The dry step, then the agent may say hello with a known floor."""
        floor = measure(self, self.baseline, few, loss_fn)
        refuse_edits(few)
        self.floor = replace(floor, bytes=floor.bytes + self._beside_a_step())
        self._state_per_byte = self.floor.state / max(1, sum(p.nbytes for p in self._params))
        self._on_measured()

    def _beside_a_step(self) -> int:
        """Bytes that a batch takes outside the pool and a dry step does not show."""
        return 0

    def _outside(self) -> int:
        """Bytes outside the pool, beyond the baseline."""
        pool = self.device.pool
        return self.device.bytes() - self.baseline - (pool.resident() if pool.capped else pool.in_use())

    def _ask_floor(self, bytes: int, timeout: float) -> Answer:
        if self.agent is None:
            return Answer.GRANTED
        answer: Answer = self.agent.request_floor(bytes, timeout)
        return answer

    def _count_steps(self) -> None:
        def stepped(*_: Any) -> None:
            self.stats.steps += 1
            self._unused.stepped()

        self._step_handle = self.optimizer.register_step_post_hook(stepped)
