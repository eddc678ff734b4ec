"""The steward: a thread that empties slots for an allocation that waits, meets orders that come due, and sees that a
training thread which gets nowhere is discarded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lull._torch.device import Pool
from lull._torch.ladder import Ladder
from lull._torch.owed import Owed, prefer_this_thread
from lull._torch.slots import Table

_LEAST_PATIENCE, _MOST_PATIENCE = 0.05, 2.0
"""Seconds that a suspended microbatch waits for memory: as long as it has run, within these."""

_DEVICE_STEP = 0.0003
"""Seconds between the looks whether a device has done what was queued."""

_LEAST_WAIT = 0.005
"""Seconds that a suspended microbatch waits for a newer order, while one without a deadline is owed."""


class Steward(Ladder):
    """A Ladder with its thread; it ends when close sets _closed."""

    def __init__(self, pool: Pool, release: str, ceiling: int, clock: Callable[[], float]) -> None:
        super().__init__(pool, release, ceiling, clock)
        self._steward = threading.Thread(target=self._tend_loop, name="lull-steward", daemon=True)
        self._steward.start()

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
