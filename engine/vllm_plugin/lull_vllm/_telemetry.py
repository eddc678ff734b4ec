"""The telemetry page's values, collected once or twice a step."""

from __future__ import annotations

import time
from typing import Any

from . import _page
from ._cached import Cached
from ._host import Status
from ._orders import Orders
from ._steps import Steps

_AT = {name: i for i, name in enumerate(_page.TELEMETRY_FIELDS)}


class Telemetry:
    """Holds the words of the page in their order; set by name, published whole."""

    def __init__(self, writer: _page.PageWriter, constants: dict[str, int]) -> None:
        self._writer = writer
        self._words = _page.words(_page.TELEMETRY_FIELDS, constants)
        self._obeyed = 0  # the newest epoch that blocks were taken for

    def set(self, name: str, value: int) -> None:
        self._words[_AT[name]] = value

    def add(self, name: str, value: int) -> None:
        self._words[_AT[name]] += value

    def get(self, name: str) -> int:
        return self._words[_AT[name]]

    def steps(self, steps: Steps) -> None:
        """Sets what the scheduler's steps did."""
        words = self._words
        words[_STEPS] = steps.newest
        words[_STEP_TOKENS] = steps.tokens
        words[_STEP_NS] = round(steps.took_s * 1e9)
        words[_PREEMPTIONS] = steps.preemptions
        words[_SHORT] = steps.short * words[_BLOCK_BYTES]

    def scheduler(self, scheduler: Any, pool: Any, cached: Cached, withdrawn: int) -> None:
        """Reads the scheduler's and the pool's counts."""
        words = self._words
        free = pool.get_num_free_blocks()
        running, waiting = scheduler.get_request_counts()
        deferred = len(scheduler.deferred_waiting)
        words[_USED] = max(0, words[_POOL] - free - withdrawn)
        words[_FREE] = free
        words[_CACHED] = max(0, cached.free)
        words[_EVICTIONS] = cached.evicted
        words[_RUNNING] = running
        words[_WAITING] = waiting
        words[_WAITING_CAPACITY] = max(0, waiting - deferred)
        words[_WAITING_DEFERRED] = deferred

    def bound(self, status: Status, orders: Orders, epoch: int) -> bool:
        """Sets where the bound stands; returns whether an epoch was confirmed just now.

        epoch is the order that status speaks of; a newer one may be known already.
        """
        words = self._words
        words[_WITHDRAWN] = status.withdrawn
        words[_PENDING] = status.pending
        words[_MAPPED] = status.mapped
        words[_BOUND] = status.bound_bytes
        words[_FLOOR] = status.floor_bytes
        words[_REQUESTED_EPOCH] = orders.epoch
        words[_REQUESTED_BYTES] = orders.bytes or 0
        words[_REFUSED] = orders.refused
        flags = words[_FLAGS] & _page.FLAG_BROKEN
        flags |= _page.FLAG_CLAMPED if status.clamped else 0
        flags |= _page.FLAG_SIDECAR_GONE if orders.gone else 0
        flags |= _page.FLAG_LEASE_RAISED if orders.raised else 0
        flags |= _page.FLAG_BOUND_CORRUPT if orders.corrupt else 0
        words[_FLAGS] = flags
        if epoch != self._obeyed:
            self._obeyed = epoch
            words[_OBEYED_STEP] = words[_STEPS]
            words[_OBEYED_LEFT] = 0 if status.applied else words[_FREE]
        if orders.raised:
            return False
        if status.applied:
            words[_APPLIED_EPOCH] = epoch
        newly = status.confirmed and words[_CONFIRMED_EPOCH] != epoch
        if status.confirmed:
            words[_CONFIRMED_EPOCH] = epoch
        return newly

    def publish(self) -> None:
        """Writes the page."""
        self._words[_WRITTEN] = time.monotonic_ns()
        self._writer.write(self._words)

    def close(self) -> None:
        self._writer.close()


_WRITTEN = _AT["written_ns"]
_FLAGS = _AT["flags"]
_POOL = _AT["pool_blocks"]
_USED = _AT["blocks_used"]
_FREE = _AT["blocks_free"]
_CACHED = _AT["blocks_cached"]
_WITHDRAWN = _AT["blocks_withdrawn"]
_PENDING = _AT["blocks_pending"]
_MAPPED = _AT["blocks_mapped"]
_BOUND = _AT["bound_bytes"]
_FLOOR = _AT["floor_bytes"]
_REQUESTED_EPOCH = _AT["requested_epoch"]
_REQUESTED_BYTES = _AT["requested_bytes"]
_APPLIED_EPOCH = _AT["applied_epoch"]
_CONFIRMED_EPOCH = _AT["confirmed_epoch"]
_REFUSED = _AT["refused"]
_RUNNING = _AT["running"]
_WAITING = _AT["waiting"]
_WAITING_CAPACITY = _AT["waiting_capacity"]
_WAITING_DEFERRED = _AT["waiting_deferred"]
_EVICTIONS = _AT["evictions"]
_STEPS = _AT["steps"]
_STEP_TOKENS = _AT["step_tokens"]
_STEP_NS = _AT["step_ns"]
_PREEMPTIONS = _AT["preemptions"]
_SHORT = _AT["short_bytes"]
_BLOCK_BYTES = _AT["block_bytes"]
_OBEYED_STEP = _AT["obeyed_step"]
_OBEYED_LEFT = _AT["obeyed_left"]
