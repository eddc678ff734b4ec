"""RankedElastic: the handle of one rank of a job that several ranks train.

Each rank runs microbatches of its own, as many and as large as its budget lets it. Where all have run theirs, they meet
(meeting.py), and only then their gradients are added up (exchange.py), each times its rank's part of the whole count.
So orders, discards and second runs are a rank's own business, and no rank waits inside a collective for one that is
slow, starved or dead.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from lull._errors import RankError, RuntimeRefusal
from lull._torch.batch import anew, batch_size, sample_copy, tensors_in
from lull._torch.call import Call
from lull._torch.elastic import Elastic
from lull._torch.exchange import add_up, beside, look_of, send, shape_of, values_of
from lull._torch.hand import Hand, Part, SharedHand
from lull._torch.meeting import Meeting
from lull._torch.separable import eval_mode
from lull._torch.shares import Share, count, shares
from lull._torch.spread import Spread, refuse_collectives
from lull._torch.undo import Snapshot
from lull._torch.verdict import Verdict, bits, refuse_unlike

_SAY_AFTER_S = 1.0
"""Seconds without memory for the smallest microbatch after which that is said."""


class RankedElastic(Elastic):
    """An Elastic whose batches are those of all ranks together."""

    def __init__(self, *args: Any, spread: Spread, meeting: Meeting, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spread = spread
        self.meeting = meeting
        pacer = self._pacer  # not self: the meeting's thread would keep it
        meeting.pausing = lambda: pacer.pausing
        self._step = 0
        self._asked_to_drain = False
        self._rates = [0.0] * spread.world
        self._hand: SharedHand | None = None
        """While a shared batch runs."""
        self._starved_since: float | None = None
        self._met = self._compared = False
        """Whether all ranks have met in this batch, and have once compared what they train."""

    @property
    def ranks(self) -> int:
        return self._spread.world

    # ---- one batch ----

    def _batch(self, call: Call) -> torch.Tensor:
        started = self._clock()
        step = self._step = self._step + 1
        before = Snapshot(self.device, self.model, None if self.floor is None else self.movers)
        self._met = False
        try:
            mine, factor = self._own_part(step, call)
            all_of_them = self._meet(step, mine)
            if call.shared and (computed := sum(verdict.samples for verdict in all_of_them)) != batch_size(call.batch):
                raise RankError(
                    (), f"computed {computed} samples of a batch of {batch_size(call.batch)} together, want each once"
                )
            loss = self._join(step, call, all_of_them, factor)
        except BaseException as error:
            self._gradients.abandon()
            before.restore()
            agreed = self._met and isinstance(error, RuntimeRefusal)
            if not agreed and not isinstance(error, RankError):
                self.meeting.fail(step, error)
            raise
        self._rates = [verdict.rate for verdict in all_of_them]
        self.draining = any(verdict.draining for verdict in all_of_them)
        self.stats.batch(self._clock() - started, float(loss))
        return loss

    def _own_part(self, step: int, call: Call) -> tuple[Verdict, Callable[[float], float]]:
        """Runs this rank's microbatches: what it says of them, and the factor of its gradient given the whole count."""
        size = batch_size(call.batch)
        amount = count(size, call.reduction, call.weights)
        told = call.reduction if call.weights is None else "weights"
        how = f"{told}, each its own batch"
        if call.shared:
            how = f"{told}, the same batch of {size} (check {look_of(self._all_tensors(call)):08x})"
        counts = bool(amount) or call.shared  # else nothing of it does, and others may have what does
        share = shares(size, call.reduction, call.weights, call.tokens) if counts else _nothing
        values = 0 if self._compared else values_of(self._everything())
        self._prepare(call, size)
        total, computed, took = self._microbatches(step, call, size, share, how)
        if call.scaler is not None and total is None:
            call.scaler.scale(torch.zeros((), device=self.device.kind))  # made at its first use, also on this rank
        verdict = Verdict(
            how=how,
            amount=amount,
            samples=computed,
            loss=0.0 if total is None else float(total),
            kind="" if total is None else str(total.dtype).removeprefix("torch."),
            reached=bits(self._gradients.reached()),
            buffers=shape_of(self._spread.buffers(self.model)),
            model=(shape_of(self._params), values),
            rate=self._rate(computed, took),
            draining=self._asked_to_drain,
        )
        if call.shared or call.reduction == "sum":
            return verdict, lambda whole: 1.0
        return verdict, lambda whole: amount / whole

    def _rate(self, computed: int, took: float) -> float:
        """Samples a second of late, half of it of this batch."""
        before = self._rates[self._spread.rank]
        if not computed:
            return before
        return 0.5 * (before + computed / took) if before else computed / took

    def _microbatches(
        self, step: int, call: Call, size: int, share: Share, how: str
    ) -> tuple[torch.Tensor | None, int, float]:
        """Their loss, the samples that this rank computed, and seconds of work."""
        began = self._clock()
        self._begin(call.batch)
        self._gradients.begin_batch(apart=True)
        hand: Hand | SharedHand = Hand(size)
        if call.shared:
            hand = self._hand = self._shared_hand(step, size, how)
        try:
            total = self._run(call, size, share, hand)
        finally:
            self._hand = None
            self.orders.end_batch()
        idle = hand.idle_s if isinstance(hand, SharedHand) else 0.0
        self.stats.waited_s += idle
        return total, hand.finished, max(self._clock() - began - idle, 1e-6)

    def _meet(self, step: int, mine: Verdict) -> list[Verdict]:
        """Everybody's, by rank. Raises RuntimeRefusal where they do not fit together, on every rank."""
        began = self._clock()
        self._look_at_the_floor()
        said = [Verdict.read(words) for words in self.meeting.meet(step, mine.words())]
        self._met = True
        self.stats.waited_s += self._clock() - began
        refuse_unlike(said)
        self._compared = True
        return said

    def _join(self, step: int, call: Call, said: list[Verdict], factor: Callable[[float], float]) -> torch.Tensor:
        """Makes gradients and buffers those of all ranks; returns their loss."""
        began = self._clock()
        whole = sum(verdict.amount for verdict in said)
        reached = [any(flags) for flags in zip(*(v.flags(len(self._params)) for v in said), strict=True)]
        group, look = self._spread.group, self._look_at_the_exchange(step)
        try:
            self._send_buffers(said, look)
            self._gradients.join_ranks(reached, factor(whole), lambda sums: add_up(sums, group, look))
        except RuntimeError as error:
            raise self.meeting.broken(step, error) from error
        self._gradients.end_batch(True)
        if call.shared and self._spread.rank == 0:
            self.meeting.forget(_shared_key(step, said[0].how))
        self.stats.exchange_s += self._clock() - began
        by_itself = call.shared or call.reduction == "sum"
        loss = sum(v.loss if by_itself else v.loss * (v.amount / whole) for v in said)
        kind = next((v.kind for v in said if v.kind), "float32")
        return torch.tensor(loss, dtype=getattr(torch, kind), device=self._params[0].device)

    def _send_buffers(self, said: list[Verdict], look: Callable[[], None]) -> None:
        """Those of the rank that computed most: rank 0 where all computed alike, as in DistributedDataParallel."""
        if len({verdict.buffers for verdict in said}) > 1:
            return  # made by each rank for itself, in another shape
        most = max(range(len(said)), key=lambda rank: (said[rank].samples, -rank))
        send(self._spread.buffers(self.model), self._spread.source(most), self._spread.group, look)

    def _look_at_the_exchange(self, step: int) -> Callable[[], None]:
        looked = self._clock()

        def look() -> None:
            nonlocal looked
            if self._clock() - looked > 0.5:
                looked = self._clock()
                self.meeting.look_at_the_exchange(step)

        return look

    # ---- a batch that all ranks share ----

    def _shared_hand(self, step: int, size: int, how: str) -> SharedHand:
        known = [rate for rate in self._rates if rate]
        mean = sum(known) / len(known) if known else 1.0
        rates = [rate or mean for rate in self._rates]
        return SharedHand(
            partial(self.meeting.swap, _shared_key(step, how)),
            Part(size, rates[self._spread.rank] / sum(rates), self._fewest, self.stats.fixed_samples()),
            rank=self._spread.rank,
            able=self._able,
            idle=lambda seconds: self._idle(step, seconds),
        )

    def _able(self) -> bool:
        able = self._alone or not self.memory.known or self.orders.ceiling >= self.least
        if able:
            self._starved_since = None
        return able

    def _idle(self, step: int, seconds: float) -> bool:
        """Waits for samples that others give back, for memory, or for the end of the batch."""
        self.meeting.got_on()
        if self._able():
            time.sleep(seconds)
        else:
            self._starved_since = self._starved_since or self._clock()
            if self._clock() - self._starved_since > _SAY_AFTER_S:
                self._say_it_waits(self.orders.ceiling)
            self.orders.await_ceiling(self.orders.ceiling, seconds)
        self.meeting.look_now_and_then(step)
        return not self._closed

    def _wait_for_more(self, than: int) -> None:
        """A shared batch does not wait for this rank's memory."""
        if self._hand is not None:
            self._hand.give_back()
        else:
            super()._wait_for_more(than)

    # ---- what goes on meanwhile ----

    def _prepare(self, call: Call, size: int) -> None:
        if self.floor is None:
            before = Snapshot(self.device, self.model, None)
            try:
                with self.caches_off(), eval_mode(self.model):
                    refuse_collectives(call.loss_fn, anew(sample_copy(call.batch, min(size, 2), size)))
            finally:
                before.restore()
        super()._prepare(call, size)

    @contextmanager
    def caches_off(self) -> Iterator[None]:
        with super().caches_off(), self._spread.quiet(self.model):
            yield

    def _beside_a_step(self) -> int:
        return beside(self._gradients.sums())

    def _boundary(self) -> None:
        self.meeting.got_on()
        super()._boundary()

    def _look_at_the_floor(self) -> None:
        self.meeting.got_on()
        if not self._met:
            self.meeting.look_now_and_then(self._step)
        super()._look_at_the_floor()

    def _wait_for_room(self) -> bool:
        self.meeting.got_on()
        return super()._wait_for_room()

    def drain(self) -> None:
        """On the agent's thread. `draining` becomes true on all ranks after the same batch."""
        self._asked_to_drain = True
        if self._on_drain is not None:
            self._on_drain()

    def close(self) -> None:
        super().close()
        self.meeting.close()

    def _all_tensors(self, call: Call) -> list[torch.Tensor]:
        return [*tensors_in(call.batch), *(() if call.weights is None else (call.weights,))]

    def _everything(self) -> list[torch.Tensor]:
        return [*self._params, *self._spread.buffers(self.model)]


def _nothing(start: int, stop: int, tokens: tuple[int, int] | None = None) -> float:
    return 0.0


def _shared_key(step: int, how: str) -> str:
    return f"batch/{step}/{zlib.crc32(how.encode())}"
