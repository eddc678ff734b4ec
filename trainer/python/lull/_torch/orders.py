"""Meets orders: what the training thread does for them, at its safe points and before it takes memory.

Threads: apply (ladder.py) runs on the agent's thread, _tend (steward.py) on the steward's, the rest on the training
thread. All share one lock, and what it guards.
"""

from __future__ import annotations

import torch

from lull._torch.owed import Discard
from lull._torch.slots import Run, Table
from lull._torch.steward import Steward

_GRACE_POINTS = 4
"""Safe points that a microbatch may pass while an order without a deadline is owed and nothing is left to empty."""

_OWED_STEP, _STEP = 0.002, 0.01
"""Seconds between the looks of a suspended microbatch: while an order is owed, and otherwise."""


class Orders(Steward):
    """What orders ask of the training thread: it empties slots, waits, or raises Discard where it takes memory."""

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
