"""Meets orders: lowers the ceiling, then frees, without waiting for the running operator.

The ladder for `slots`: cached memory goes back; a microbatch that ends within the deadline finishes; slots are
emptied, earliest block first; the training thread is held back at its next allocation or saved tensor; the
microbatch is discarded. costs.py has learned what each takes and loses. The other releases are what Lull is
compared with: they wait for the microbatch, for the batch, or raise at the next
saved tensor.

Threads: apply runs on the agent's thread, _tend on the steward's, the rest on the training thread. One
lock guards what is owed; nothing that can block is done under it except giving memory back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch

from lull._protocol import Ack, Budget, Span
from lull._torch.allowance import Allowance
from lull._torch.costs import Costs
from lull._torch.device import Pool
from lull._torch.owed import Discard, Owed, prefer_this_thread
from lull._torch.room import Room
from lull._torch.slots import Run, Table

_GRACE_POINTS = 4
"""Safe points that a microbatch may pass while an order without a deadline is owed and nothing is left to empty."""

_LEAST_PATIENCE, _MOST_PATIENCE = 0.05, 2.0
"""Seconds that a suspended microbatch waits for memory: as long as it has run, within these."""


_LEAST_WAIT = 0.005
"""Seconds that a suspended microbatch waits for a newer order, while one without a deadline is owed."""


_OWED_STEP, _STEP = 0.002, 0.01
"""Seconds between the looks of a suspended microbatch: while an order is owed, and otherwise."""


_DEVICE_STEP = 0.0003
"""Seconds between the looks whether a device has done what was queued."""


_LONGEST_WAIT_US = 5_000_000
"""How long an allocation waits for room before it fails; the steward decides sooner."""

_log = logging.getLogger("lull")


class Orders:
    """The ceiling, and the promise that resident stays under it."""

    def __init__(self, pool: Pool, release: str, ceiling: int, clock: Callable[[], float]) -> None:
        self.pool = pool
        self.release = release
        self.clock = clock
        self.budget = self.ceiling = ceiling
        """Bytes of the budget in force, and what of it the pool may take: less where others lie outside the pool."""
        self.allowance = Allowance()
        self.lowest = ceiling
        """The lowest ceiling since the running microbatch began."""
        self.grant = ceiling
        """The last budget; the ceiling follows it at once, or later under the other releases."""
        self.epoch = 0
        self.hows: dict[str, int] = {}
        self.costs = Costs()
        self.why = ""
        """Why the last order that met a running microbatch went the way it did; for people."""
        self.suspended_s = 0.0
        self.on_owed: Callable[[], None] = lambda: None
        """Called under the lock when an order comes to need the training thread; must not wait."""
        self.working = clock
        """Seconds that training has worked: pauses that a pace asks for are no work."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._room = Room(pool)
        self._owed: Owed | None = None
        self._emptied: list[str] = []
        """The ways in which orders made this microbatch compute again."""
        self._table: Table | None = None
        self._samples = 0
        self._busy_batch = False
        self._micro_started = 0.0
        self._stuck_since: float | None = None
        self._flag = False
        self._discard = False
        self.ordered = False
        """Whether the discard that is wanted is for an order, not for want of memory."""
        self._closed = False
        pool.set_cap(ceiling)
        self.set_release(release)
        self._steward = threading.Thread(target=self._tend_loop, name="lull-steward", daemon=True)
        self._steward.start()

    def set_release(self, release: str) -> None:
        """How orders are met from now on. Under `slots` an allocation waits while slots are emptied for it."""
        with self._lock:
            self.release = release
            self.pool.policy(_LONGEST_WAIT_US if release == "slots" else 0, False)

    # ---- the agent's thread ----

    def apply(
        self, order: Budget, reply: Callable[[Ack], None], allowance: Callable[[], Allowance] | None = None
    ) -> None:
        """Runtime.apply: the ceiling first, then the memory; replies now if it can. allowance is asked for the one
        in force from this order on."""
        started = self.clock()
        with self._lock:
            self._supersede()
            if allowance is not None:
                self.allowance = allowance()
            self.epoch = max(self.epoch, order.epoch)
            self.grant = order.bytes
            owed = Owed(order, reply, started, self.pool.resident())
            self._plan(owed)
            slots = self.release == "slots" and not owed.until
            if slots or order.bytes >= self.budget or not self._working():
                self._set_ceiling(order.bytes)
                if self._meet(owed):
                    return
                if not self._working() and not self.pool.coming():  # nothing runs that could let go of more
                    self._answer(owed, "part")
                    return
            self._owed = owed
            self._flag = not owed.until
            if self.release == "next-saved":
                self.ordered = self._discard = True
            self.on_owed()
        self.pool.wake()

    def _plan(self, owed: Owed) -> None:
        """Whether a running microbatch may finish first. One that has already lost something, or that waits for
        memory, is past that."""
        table, target = self._table, self.allowance.of(owed.order.bytes)
        if self.release != "slots" or table is None or target >= self.ceiling:
            return
        over = self.pool.in_use() - target
        if over <= 0 or table.dropped or self._discard or self.pool.waiters():
            return
        plan = self.costs.choose(over, owed.within, self._samples, self._ran())
        owed.until, owed.planned = plan.wait_s, plan.how == "finish"
        self.why = plan.why
        _log.debug("order epoch=%d to %d bytes: %s; %s", owed.order.epoch, target, plan.how, plan.why)

    def _comes_due(self, owed: Owed) -> bool:
        """Whether an order is to be met now; the end of a wait lowers the ceiling."""
        if not owed.until:
            return True
        now = self.clock()
        if now - owed.started < owed.until:
            return False
        owed.until, owed.began, self._flag = 0.0, now, True
        self._set_ceiling(owed.order.bytes)
        return True

    def _working(self) -> bool:
        return self._busy_batch if self.release == "batch" else self._table is not None

    def _supersede(self) -> None:
        if self._owed is not None:
            self._answer(self._owed, "superseded")

    def allow(self, allowance: Callable[[], Allowance]) -> None:
        """Asks what of a budget the pool may take from now on, so that the last to know is the last to say. Call it
        while no microbatch runs."""
        with self._lock:
            if (now := allowance()) != self.allowance:
                self.allowance = now
                self._set_ceiling(self.budget)
                self.pool.trim(self.ceiling)

    def _set_ceiling(self, budget: int) -> None:
        self.budget, self.ceiling = budget, self.allowance.of(budget)
        self.lowest = min(self.lowest, self.ceiling)
        self.pool.set_cap(self.ceiling)
        self._changed.notify_all()

    def _meet(self, owed: Owed) -> bool:
        """Frees what it takes; answers and returns True once resident is within the order."""
        start = self.clock()
        pool, target = self.pool, self.allowance.of(owed.order.bytes)
        pool.trim(target)
        table = self._table
        tight = pool.resident() > target or (table is not None and self._room.crowded(table, target))
        if tight and table is not None and self.release == "slots":
            owed.emptied |= self._room.empty_down_to(table, target)
        owed.freeing += self.clock() - start
        held = pool.resident()
        if held > target:
            return False
        if owed.ended is not None:
            self._answer(owed, *owed.ended)
            return True
        if self._discard and self.ordered:  # its memory goes while it is still being undone
            self._answer(owed, "discard", self._samples)
            return True
        how = "drop" if owed.emptied else "cached" if held < owed.before else "nothing"
        self._answer(owed, "suspend" if owed.held_back else how)
        return True

    def _answer(self, owed: Owed, how: str, discarded: int = 0) -> None:
        held = self.pool.resident() + self.allowance.excess
        if how != "superseded":
            # Resident may still rise up to the ceiling: what is promised is the most it may be, not the moment.
            held = max(held, self.allowance.held(owed.order.bytes))
            if held > owed.order.bytes:
                how = "part"  # small tensors that live on hold whole units of the pool; others lie outside it
        now = self.clock()
        total, freeing = now - owed.started, owed.freeing
        self.hows[how] = self.hows.get(how, 0) + 1
        self.costs.observe(how, max(0, owed.before - self.pool.resident()), now - owed.began)
        if how in ("drop", "suspend") and self._table is not None:
            self._emptied.append(how)
        spans = (Span("free", 0, round(freeing * 1e6)),) if freeing else ()
        waited = round(max(0.0, total - freeing) * 1e6)
        if owed.planned:
            spans = (Span("let the microbatch finish", 0, waited), *spans)
        if owed is self._owed:
            self._owed = None
            self._flag = self._discard
        owed.reply(Ack(owed.order.epoch, held, waited, round(freeing * 1e6), how, discarded, spans))

    # ---- the steward's thread: ends when close sets _closed ----

    def _tend_loop(self) -> None:
        prefer_this_thread()
        while not self._closed:
            watching = self._owed is not None or self._stuck_since is not None
            short = self.pool.wait_short(1_000 if watching else 500_000)
            with self._lock:
                self._tend(short)

    def _tend(self, short: int) -> None:
        table = self._table
        if self._owed is not None and table is None and not self._closed:
            self._tend_what_comes(self._owed)
        if self.release != "slots" or table is None or self._closed:
            return
        if short > 1:
            self._room.empty_to(table, self.pool.in_use() - short)
        if self._owed is not None and self._comes_due(self._owed):
            self._meet(self._owed)
        self._watch_the_stuck(table)

    def _tend_what_comes(self, owed: Owed) -> None:
        """No microbatch runs, and an order waits for what the device has still queued: until that is done, or for
        the order's time."""
        late = self.clock() - owed.started > (owed.within or _MOST_PATIENCE)
        if self._working() and owed.ended is None:  # under the other releases the batch is waited for
            return
        if not self._meet(owed) and (late or not self.pool.coming()):
            self._answer(owed, "part", owed.ended[1] if owed.ended else 0)

    def _watch_the_stuck(self, table: Table) -> None:
        """A training thread that waits inside an allocation, with nothing left to empty, gets nowhere."""
        if not self.pool.waiters() or table.droppable():
            self._stuck_since = None
            return
        now = self.clock()
        if self._stuck_since is None:
            self._stuck_since = now
        due = self._owed is not None and not self._owed.until
        if due or now - self._stuck_since > self._patience(self._ran()):
            self.suspended_s += now - self._stuck_since
            self._want_discard()

    def _overdue(self, now: float) -> bool:
        """Whether an order that only discarding can meet has no time left but for that."""
        owed = self._owed
        if owed is None:
            return False
        waited = now - owed.started
        return self.costs.must_discard(owed.within, waited, self._over(owed)) if owed.within else waited > _LEAST_WAIT

    def _over(self, owed: Owed) -> int:
        return max(0, self.pool.resident() - self.allowance.of(owed.order.bytes))

    def _ran(self) -> float:
        """Seconds that the running microbatch has worked."""
        return self.working() - self._micro_started

    def _patience(self, ran: float) -> float:
        return min(max(ran, _LEAST_PATIENCE), _MOST_PATIENCE)

    def _want_discard(self) -> None:
        self._discard_now()
        self._flag = True
        self._stuck_since = None
        self.pool.fail(True)
        self.on_owed()

    def _discard_now(self) -> None:
        self._discard = True
        self.ordered = self._owed is not None
        if self._owed is not None:
            self._owed.began = self.clock()

    # ---- the training thread ----

    def begin_batch(self) -> None:
        self._busy_batch = True

    def begin(self, table: Table, samples: int) -> None:
        """A microbatch starts; from now on its table may be emptied."""
        table.safe_point = self.safe_point
        table.may_store = self.may_store
        table.await_room = self.await_room
        with self._lock:
            self._table, self._samples = table, samples
            self.lowest = self.ceiling
            self._micro_started = self.working()
            self._discard = self.ordered = False
            self._emptied = []
            self._flag = self._owed is not None

    def end(self, *, whole: bool = True) -> None:
        """The microbatch is over, as a `whole` or by an error, and its memory is free: what is owed can be met."""
        with self._lock:
            if whole and self._table is not None:
                self._learn(self._table)
            self._table = None
            self._stuck_since = None
            if self._discard:  # it ended before it came to a point where it could be discarded
                self._discard = False
                self.pool.fail(False)
            self._settle("finish", 0, batch_over=False)

    def _learn(self, table: Table) -> None:
        """What a whole microbatch took, or what orders made it compute again."""
        if not table.dropped and not table.recomputed:
            self.costs.sample_s.observe(self._ran() / self._samples)
        for how in self._emptied:
            self.costs.lost(how, table.recompute_s / len(self._emptied))

    def discarded(self, samples: int) -> None:
        """The microbatch was undone and its memory is free."""
        with self._lock:
            if self.ordered:
                self.costs.lost("discard", self._ran())
            self._table = None
            self._stuck_since = None
            self._discard = False
            self.pool.fail(False)
            if self.pool.capped and not self.pool.waits:
                self.pool.trim(0)  # an allocation may have failed for want of a piece that is large enough
            self._settle("discard", samples, batch_over=False)

    def end_batch(self) -> None:
        with self._lock:
            self._busy_batch = False
            self._settle("finish", 0, batch_over=True)

    def _settle(self, how: str, samples: int, *, batch_over: bool) -> None:
        owed = self._owed
        if owed is None or (self.release == "batch" and not batch_over):
            return
        start = self.clock()
        self._set_ceiling(owed.order.bytes)
        self.pool.trim(self.ceiling)
        owed.freeing += self.clock() - start
        if self.pool.coming() and self._over(owed) and not self._closed:
            owed.ended = owed.ended or (how, samples)  # the steward answers
            return
        self._answer(owed, how, samples)

    def safe_point(self) -> None:
        """Called for each saved tensor, packed or unpacked. Raises Discard when it must end."""
        if self._flag:
            self._at_point()

    def _at_point(self) -> None:
        if self._discard:
            raise Discard
        if self.release != "slots":
            return
        with self._lock:
            owed = self._owed
            if owed is None:
                self._flag = self._discard
                return
            if not self._comes_due(owed):
                return
            owed.held_back = True
            if self._meet(owed):
                return
            if self._await_device(owed):
                return
            owed.points += 1
            if self._overdue(self.clock()) if owed.within else owed.points >= _GRACE_POINTS:
                self._want_discard()
        if self._discard:
            raise Discard

    def _await_device(self, owed: Owed) -> bool:
        """What is free goes by itself, once the device has done what is queued: this thread waits meanwhile, and takes
        nothing of it back; a discard would bring nothing sooner. True when the order was met, or replaced."""
        began = self.clock()
        while self._owed is owed and self.pool.coming() >= self._over(owed):
            if self.clock() - began > _MOST_PATIENCE:
                return False
            self._changed.wait(_DEVICE_STEP)
            if self._owed is owed and self._meet(owed):
                return True
        return self._owed is not owed

    def may_store(self, tensor: torch.Tensor) -> bool:
        """Whether pack may keep a tensor under the ceiling; empties earlier blocks to make it so."""
        table = self._table
        if table is None or self.release != "slots":
            return True
        table.largest = max(table.largest, tensor.nbytes)
        limit = self.ceiling - self._room.margin(table)
        if not self.pool.above(limit):
            return True
        with self._lock:
            return table.empty_earliest(lambda: not self.pool.above(limit))

    def make_room(self) -> None:
        """A block begins, forward or backward: in a pool where no allocation waits, room is made before it."""
        table = self._table
        if table is not None and self.release == "slots" and self._room.crowded(table, self.ceiling):
            with self._lock:
                table.empty_earliest(lambda: not self._room.crowded(table, self.ceiling))

    def await_room(self, run: Run) -> None:
        """Before a block runs again: waits, suspended, until the ceiling lets it."""
        table = self._table
        if table is None or self.release != "slots" or self._room.fits(run, self.ceiling):
            return
        began, patience = self.clock(), self._patience(self._ran())
        with self._changed:
            while not table.empty_earliest(lambda: self._room.fits(run, self.ceiling)):
                if self._owed is not None and self._comes_due(self._owed):
                    self._owed.held_back = True
                    self._meet(self._owed)
                now = self.clock()
                if self._discard or self._overdue(now) or now - began > patience:
                    self._discard_now()
                    break
                self._changed.wait(_OWED_STEP if self._owed is not None else _STEP)
        self.suspended_s += self.clock() - began
        if self._discard:
            raise Discard

    def await_ceiling(self, above: int, timeout: float) -> bool:
        """Waits until the ceiling is above what was too little; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ceiling > above or self._closed, timeout)

    def lower_to(self, bytes: int) -> None:
        """Lowers the ceiling without an order (the sidecar is gone, or has not granted anything yet)."""
        with self._lock:
            if bytes < self.budget:
                self.apply(Budget(epoch=self.epoch, bytes=bytes, reason="lease ended"), lambda ack: None)

    def return_to(self, bytes: int) -> None:
        """Raises the ceiling to the job's own budget, without an order: for a job that no sidecar speaks for."""
        with self._lock:
            if self.epoch == 0 and bytes > self.budget:
                self.apply(Budget(epoch=0, bytes=bytes, reason="alone"), lambda ack: None)

    @property
    def wanted(self) -> bool:
        """Whether an order waits for the training thread to go on. Any thread may ask."""
        return self._owed is not None or self._discard

    @property
    def discarding(self) -> bool:
        """Whether this microbatch is to end."""
        return self._discard

    def close(self) -> None:
        """Ends the steward and waits for it; whatever is owed is answered as it stands."""
        self._closed = True
        self.pool.wake()
        self._steward.join(timeout=5)
        with self._lock:
            self.pool.fail(False)
            self._settle("finish", 0, batch_over=True)
