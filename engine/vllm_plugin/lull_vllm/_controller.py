"""The one object per EngineCore: it ticks on the scheduler's thread and publishes the page.

Threads: the scheduler's calls tick and the hooks; the bell thread only wakes it, beats and reads
the clock; rank readers deliver answers. The lock guards the bound, the orders and the page; blocks
change hands on the scheduler's thread alone, inside tick.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from . import _doorbell, _page
from ._admission import Admission
from ._cached import Cached
from ._doorbell import Doorbell
from ._host import Status
from ._orders import Orders
from ._requests import Requests
from ._steps import Steps
from ._telemetry import Telemetry

logger = logging.getLogger("vllm.lull")

BEAT_S = 0.1
_WALK_EVERY_S = 1.0


class Bound(Protocol):
    """HostBound or KVCachedBound."""

    def tick(
        self, target: int | None, need: Callable[[int], int], step: int, done: int
    ) -> None: ...

    @property
    def restless(self) -> bool: ...

    def holds(self, need: int) -> bool: ...

    def status(self) -> Status: ...


class Controller:
    """Joins scheduler, bound, orders, page and bells."""

    def __init__(
        self,
        scheduler: Any,
        telemetry: Telemetry,
        orders: Orders,
        bell: Doorbell,
        cached: Cached,
        requests: Requests,
        admission: Admission,
        bound: Bound | None,
        lock: threading.RLock,
        initial: int | None = None,
        alive: Callable[[], int] = lambda: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._telemetry = telemetry
        self._orders = orders
        self._bell = bell
        self._cached = cached
        self._requests = requests
        self._admission = admission
        self._bound = bound
        self._lock = lock
        self._initial = initial
        self._alive = alive
        self._clock = clock
        self._steps = Steps(clock)
        self._rang = False  # the bell thread knows of an order that tick has not read
        self._restless = False  # the bound wants another tick, order or not
        self._ticked = 0  # the epoch that the bound's status speaks of
        self._next_walk = 0.0
        self._broken = False
        self._wake_engine: Callable[[], None] | None = None
        self._wake_pending = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="lull-bell", daemon=True)

    def start(self) -> None:
        """Publishes the first page and starts listening."""
        self.tick()
        self._thread.start()

    def attach(self, wake_engine: Callable[[], None]) -> None:
        """wake_engine makes the engine's loop call tick, from whatever it waits for."""
        self._wake_engine = wake_engine

    # On the scheduler's thread.

    def tick(self) -> None:
        """Applies orders and moves blocks. Safe between steps and while the engine is idle."""
        with self._lock:
            self._wake_pending = False
            if self._broken:
                return
            try:
                self._move()
                self._collect()
            except Exception as error:
                self._break(error)

    def before_schedule(self) -> None:
        """Most steps bring no order. The page is not read here, where the workers wait.

        A read lets go of the interpreter, and the thread that sends the last tokens takes it.
        """
        self._steps.begin()
        if self._rang or self._restless:
            self.tick()

    def after_schedule(self, output: Any) -> None:
        try:
            self._steps.scheduled(output)
        except Exception as error:
            self._break(error)
        if self._steps.tokens and not self._steps.fell_short:
            self._bell.enough()
        else:
            self._show_at_once()

    def while_it_runs(self) -> None:
        """The worker has the step: what is done here delays nobody. Makes up for a lost bell."""
        with self._lock:
            if self._broken or not self._steps.owed:
                return
            try:
                if self._orders.poll():
                    self._move()
                self._collect()
            except Exception as error:
                self._break(error)

    def after_update(self, output: Any) -> None:
        try:
            self._steps.came_back(output)
            # Another step follows at once and shows it, unless this was the last.
            if not (self._restless or self._steps.owed or not self._scheduler.running):
                return
            with self._lock:
                if self._broken:
                    return
                if self._restless:
                    self._move()
                self._collect()
        except Exception as error:
            self._break(error)

    def must_wait(self, request: Any) -> bool:
        """Whether a request that is not running must not start under this bound yet."""
        return not self._broken and self._admission.must_wait(request)

    def started(self) -> None:
        """The request that must_wait was asked about last got its blocks."""
        self._admission.started()

    def fell_short(self) -> None:
        """An allocation was refused for want of blocks."""
        self._steps.fell_short = True

    def looked_up(self, tokens: int, hits: int) -> None:
        """A request's prompt was looked up in the prefix cache."""
        self._telemetry.add("prefix_queries", tokens)
        self._telemetry.add("prefix_hits", hits)

    def _show_at_once(self) -> None:
        """A step that fell short, or one without work: no worker's run to show it in follows."""
        steps = self._steps
        with self._lock:
            if self._broken:
                return
            try:
                if steps.fell_short:
                    self._telemetry.add("shortages", 1)
                    steps.short = self._lacking()
                self._collect()
            except Exception as error:
                self._break(error)
        if steps.fell_short:
            self._bell.short(steps.short, self._clock())
        else:
            self._bell.enough()

    def _lacking(self) -> int:
        free = self._pool.get_num_free_blocks()
        status = self._status()
        return self._admission.lacking(free, self._telemetry.get("pool_blocks") - status.withdrawn)

    def _move(self) -> None:
        orders, bound = self._orders, self._bound
        self._rang = False
        orders.poll()
        if bound is None:
            return
        target = orders.target
        if orders.bytes is None:
            target = self._initial
        bound.tick(target, self._requests.largest, self._steps.newest, self._steps.done)
        self._ticked = orders.epoch
        self._restless = bound.restless

    def _collect(self) -> None:
        self._steps.owed = False
        now = self._clock()
        if now >= self._next_walk:
            self._next_walk = now + _WALK_EVERY_S
            self._cached.walk()
        status = self._status()
        telemetry = self._telemetry
        telemetry.steps(self._steps)
        telemetry.scheduler(self._scheduler, self._pool, self._cached, status.withdrawn)
        self._publish(status)

    def _status(self) -> Status:
        if self._bound is not None:
            return self._bound.status()
        pool = self._telemetry.get("pool_blocks")
        return Status(mapped=pool, bound_bytes=pool * self._telemetry.get("block_bytes"))

    def _publish(self, status: Status) -> None:
        confirmed = False
        if self._bound is not None:
            confirmed = self._telemetry.bound(status, self._orders, self._ticked)
        else:
            self._telemetry.set("blocks_mapped", status.mapped)
            self._telemetry.set("bound_bytes", status.bound_bytes)
        self._telemetry.publish()
        if confirmed:
            self._bell.ring(_doorbell.CONFIRMED)

    def _break(self, error: Exception) -> None:
        """Freezes: blocks that are out stay out, and vLLM goes on with what it has."""
        if self._broken:
            return
        self._broken = True
        logger.exception("lull: %s; the bound is frozen where it is and vLLM goes on", error)
        with self._lock:
            self._telemetry.set("flags", self._telemetry.get("flags") | _page.FLAG_BROKEN)
            self._show_broken()

    def _show_broken(self) -> None:
        """Where the page itself is what fails, it grows old, and the sidecar sees that."""
        with contextlib.suppress(Exception):
            self._telemetry.publish()

    # On other threads.

    def settled(self, given_back: int, freed: bool, took_s: float) -> None:
        """A rank reader saw an order answered; the lock is held."""
        if self._ended.is_set():
            return
        self._telemetry.add("given_back_bytes", given_back)
        self._telemetry.set("given_back_ns", round(took_s * 1e9))
        self._telemetry.add("faults", not freed)
        try:
            self._publish(self._status())  # also where the bound is frozen: what went is gone
        except Exception as error:
            self._break(error)
            return
        if self._restless:
            self.wake()

    def rang(self) -> None:
        """The bound page may have changed: it is read before the next step."""
        self._rang = True
        self.wake()

    def wake(self) -> None:
        """Asks for a tick soon, once."""
        if self._wake_engine is not None and not self._wake_pending:
            self._wake_pending = True
            self._wake_engine()

    def _listen(self) -> None:
        """Runs on the bell thread until close."""
        next_beat = 0.0
        while not self._ended.is_set():
            rang = self._bell.wait(BEAT_S)
            if self._ended.is_set():
                return
            if rang:
                self.rang()
            if self._clock() >= next_beat:
                next_beat = self._clock() + BEAT_S
                self._beat()

    def _beat(self) -> None:
        """Makes up for a lost bell, looks at the lease, and shows that the process lives.

        It only looks: orders are read, and blocks moved, by tick on the scheduler's thread.
        """
        with self._lock:
            self._telemetry.add("beats", 1)
            self._telemetry.set("ranks_alive", self._alive())
            if self._broken:
                self._show_broken()
                return
            try:
                self._look()
            except Exception as error:
                self._break(error)

    def _look(self) -> None:
        """Of a beat, in an engine that is not broken; the lock is held."""
        status = self._status()
        if self._bound is not None:
            unmapped = self._telemetry.get("pool_blocks") - status.mapped
            raised = self._orders.expire(unmapped * self._telemetry.get("block_bytes"))
            if raised or self._restless or self._orders.changed():
                self.rang()
        # An idle engine may have lost requests or its prefix cache without a step.
        self._telemetry.scheduler(self._scheduler, self._pool, self._cached, status.withdrawn)
        self._publish(status)

    def close(self) -> None:
        """Stops listening and removes page and sockets."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._bell.wake()
        if self._thread.is_alive():
            self._thread.join(2.0)
        with self._lock:
            self._bell.close()
            self._telemetry.close()
