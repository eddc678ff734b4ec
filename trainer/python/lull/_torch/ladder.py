"""What an order does when it comes: lowers the ceiling, then frees, and answers once resident is within it.

The ladder for `slots`: cached memory goes back; a microbatch that ends within the deadline finishes; slots are
emptied, earliest block first; the training thread is held back at its next allocation or saved tensor; the
microbatch is discarded. costs.py has learned what each takes and loses. The other releases are what Lull is
compared with: they wait for the microbatch, for the batch, or raise at the next saved tensor.

One lock guards what is owed; nothing that can block is done under it except giving memory back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from lull._protocol import Ack, Budget, Span
from lull._torch.allowance import Allowance
from lull._torch.costs import Costs
from lull._torch.device import Pool
from lull._torch.owed import Owed
from lull._torch.room import Room
from lull._torch.slots import Table

_LONGEST_WAIT_US = 5_000_000
"""How long an allocation waits for room before it fails; the steward decides sooner."""

_log = logging.getLogger("lull")


class Ladder:
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

    def set_release(self, release: str) -> None:
        """How orders are met from now on. Under `slots` an allocation waits while slots are emptied for it."""
        with self._lock:
            self.release = release
            self.pool.policy(_LONGEST_WAIT_US if release == "slots" else 0, False)

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

    def _over(self, owed: Owed) -> int:
        return max(0, self.pool.resident() - self.allowance.of(owed.order.bytes))

    def _ran(self) -> float:
        """Seconds that the running microbatch has worked."""
        return self.working() - self._micro_started
