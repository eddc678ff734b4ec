"""The CUDA arena as a pool: activations lie in a torch.cuda.MemPool on csrc/vmm.c, and go back without a synchronise.

PyTorch caches what tensors leave in a MemPool, and gives it back only when the MemPool is gone. So the pool here is
*renewed*: the training thread, between two operators, goes on in a new MemPool and lets the old one go. What still
lives in the old one stays, and its segments come back with a later renewal. From the segments that came back the
arena unmaps whole handles, as soon as the events of their last uses are complete; any thread may do that.

Threads: enable and what allocates, on the training thread. While it is inside, only it renews; trim on any other
thread gives back what the arena has, and `coming` says what the training thread and the GPU still owe. The lock is
held for what must not change meanwhile, and nothing waits for a GPU under it.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack

from lull._torch.cuda_books import Books, Place
from lull._vmm import Vmm

_NO_CAP = 1 << 60


class CudaArenaPool:
    """Lull's arena on one GPU."""

    name = "the CUDA arena"
    capped = True
    waits = False

    def __init__(self, vmm: Vmm, books: Books) -> None:
        self.vmm, self._books, self._stats = vmm, books, vmm.stats
        self.unit = vmm.stats.handle
        self._lock = threading.RLock()
        self._place: Place | None = books.place()
        self._old: list[tuple[int, int]] = []
        """Pools that were let go and may have something left."""
        self._inside: ExitStack | None = None
        self._owner = 0
        """The thread that is inside."""
        self._outside = 0
        """Bytes in tensors that are none of the pool's, while a thread is inside."""
        self._after_renewal: int | None = None
        """in_use after the last renewal, or the highest since; None before the first of this pass."""
        self.renewals = 0
        self._live()  # a PyTorch that cannot say it is found out here

    # ---- what it holds ----

    def resident(self) -> int:
        return self._stats.resident

    def in_use(self) -> int:
        """Inside a pass this costs a look into PyTorch's statistics, about 20 us: see above."""
        with self._lock:
            if self._inside is None:
                return self._live()
            return max(0, self._books.allocated() - self._outside)

    def above(self, limit: int) -> bool:
        """Segments are at least what lives in them: while they are within the limit nothing else is asked."""
        return self._stats.in_use > limit and self.in_use() > limit

    def coming(self) -> int:
        with self._lock:
            free = self.vmm.free_bytes()
            if self._after_renewal is None:
                return free + max(0, self._stats.in_use - self.in_use())
            now = self.in_use()
            self._after_renewal = max(self._after_renewal, now)
            return free + self._after_renewal - now

    def peak(self) -> int:
        with self._lock:
            return max(0, self._books.peak_allocated() - self._outside)

    def peak_resident(self) -> int:
        return self._stats.peak_resident

    def reset_peak(self) -> None:
        self._books.reset_peaks()
        self.vmm.reset_peak()

    def _live(self) -> int:
        ids = [*self._old, *([self._place.id] if self._place is not None else [])]
        live = self._books.live(ids)
        self._old = [pool for pool in self._old if pool in live]
        return sum(live.values())

    # ---- the training thread ----

    def enable(self, on: bool) -> bool:
        with self._lock:
            was = self._inside is not None
            if on and not was:
                self._outside = self._books.allocated() - self._live()
                self._after_renewal = None
                self._enter()
            elif was and not on:
                self._leave()
            return was

    def _enter(self) -> None:
        if self._place is None:  # the last renewal failed
            self._place = self._books.place()
        stack = ExitStack()
        stack.enter_context(self._books.route(self._place))
        self._inside, self._owner = stack, threading.get_ident()

    def _leave(self) -> None:
        stack, self._inside = self._inside, None
        if stack is not None:
            stack.close()

    # ---- giving back ----

    def trim(self, target: int) -> int:
        freed = self.vmm.trim(target)
        with self._lock:
            if self._stats.resident - self.vmm.free_bytes() <= target or not self._may_renew():
                return freed
            self._renew()
        return freed + self.vmm.trim(target)

    def _may_renew(self) -> bool:
        """Whether this thread may, and whether a renewal could bring anything."""
        if self._inside is not None and self._owner != threading.get_ident():
            return False
        now = self.in_use()
        if self._after_renewal is not None and self._inside is not None:
            return now < self._after_renewal
        return self._stats.in_use > now

    def _renew(self) -> None:
        inside = self._inside is not None
        self._leave()
        old = self._place
        if old is not None:
            self._old.append(old.id)
        self._place = None
        del old  # the MemPool goes here, while no thread is in any
        self._place = self._books.place()
        self._books.sweep(self._place)
        self.renewals += 1
        if inside:
            self._enter()
            self._after_renewal = self.in_use()

    # ---- the ceiling ----

    def set_cap(self, cap: int) -> None:
        self.vmm.set_cap(min(cap, _NO_CAP))

    def policy(self, wait_us: int, overdraft: bool) -> None:
        """An allocation above the cap fails at once: PyTorch holds its lock meanwhile."""

    def fail(self, on: bool) -> None: ...

    def waiters(self) -> int:
        return 0

    def wait_short(self, timeout_us: int) -> int:
        return min(1, self.vmm.wait_short(timeout_us))

    def wake(self) -> None:
        self.vmm.wake()

    def counters(self) -> dict[str, int]:
        names = ("failures", "trims", "trimmed", "maps", "lost", "peak_resident", "blocks")
        return {**{name: getattr(self._stats, name) for name in names}, "renewals": self.renewals}
