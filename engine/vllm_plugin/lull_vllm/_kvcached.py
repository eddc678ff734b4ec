"""The bound on CUDA: kvcached's own limit, set in-process. Written to its interface, not measured.

kvcached (pip install kvcached, ENABLE_KVCACHED=true) replaces vLLM's static pool with pages that it
maps and unmaps. Its limit is applied on the scheduler's thread, without the 100 ms poll of its
shared segment. In use above the limit it answers "deferred": nothing is preempted by it, and each
call again says how far it came.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import LullVLLMError
from ._host import Status

SetLimit = Callable[..., Mapping[str, Any]]
Trim = Callable[[], None]

_WAITING = ("deferred", "rejected")  # more in use than the limit; pages in quarantine


def find() -> SetLimit | None:
    """Returns kvcached's limit call, or None if this kvcached has none or is not there."""
    try:
        control = importlib.import_module("kvcached.control")
    except ImportError:
        return None
    found: SetLimit | None = getattr(control, "set_instance_memory_limit", None)
    return found


def find_trim() -> Trim:
    """Returns what unmaps the pages that kvcached keeps mapped for the next allocation.

    An older kvcached has no such call, and keeps them.
    """
    try:
        registry = importlib.import_module("kvcached.pool_registry")
    except ImportError:
        return lambda: None

    def trim() -> None:
        for manager, *_ in registry.get_registered_kv_cache_pools():
            manager.trim()

    return trim


class ElasticCached:
    """Counts kvcached's evictable blocks; its pool has no free queue. Same face as CachedCount."""

    evicted = 0

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @property
    def free(self) -> int:
        return len(getattr(self._pool, "_evictable_blocks", ()))

    def walk(self) -> None:
        """Nothing to put right: the count is kvcached's own."""


class KVCachedBound:
    """Drives set_instance_memory_limit; same face as HostBound."""

    def __init__(
        self,
        set_limit: SetLimit,
        pool_bytes: int,
        block_bytes: int,
        trim: Trim = lambda: None,
    ) -> None:
        self._set_limit = set_limit
        self._trim = trim
        self._pool_bytes = pool_bytes
        self._block_bytes = block_bytes
        self._target = pool_bytes
        self._wanted = pool_bytes
        self._revision = 0
        self._floor = 0
        self._mapped = 0
        self._effective = pool_bytes
        self._settled = True

    def tick(self, target: int | None, need: Callable[[int], int], step: int, done: int) -> None:
        """Sets the limit if it changed, and asks again while kvcached has not come down to it."""
        self._target = self._pool_bytes if target is None else min(target, self._pool_bytes)
        wanted = self._target
        if self._effective > self._target:
            self._floor = need(self._effective // self._block_bytes) * self._block_bytes
            wanted = max(wanted, self._floor)
        if wanted == self._wanted and self._settled:
            return
        if wanted != self._wanted:
            self._revision += 1
            self._wanted = wanted
        applied = self._ask(wanted)
        if self._mapped > wanted:
            self._trim()
            applied = self._ask(wanted)
        self._settled = applied and self._mapped <= wanted

    def _ask(self, wanted: int) -> bool:
        """Sets the limit, or asks again how far it came; returns whether it is in force."""
        answer = self._set_limit(wanted, revision=self._revision)
        status = str(answer.get("status"))
        if status != "applied" and status not in _WAITING:
            reason = answer.get("reason") or status
            raise LullVLLMError(f"kvcached: limit {wanted}, revision {self._revision}: {reason}")
        self._mapped = int(answer["mapped_bytes"])
        self._effective = int(answer["effective_limit_bytes"])
        return status == "applied"

    @property
    def restless(self) -> bool:
        return not self._settled or self._wanted > self._target

    def holds(self, need: int) -> bool:
        return need * self._block_bytes <= self._wanted

    def status(self) -> Status:
        done = self._settled and self._wanted <= self._target
        unmapped = self._pool_bytes - self._wanted
        return Status(
            withdrawn=unmapped // self._block_bytes,
            pending=max(0, self._mapped - self._wanted) // self._block_bytes,
            mapped=self._mapped // self._block_bytes,
            bound_bytes=self._wanted,
            floor_bytes=self._floor,
            applied=self._wanted <= self._target,
            confirmed=done,
            clamped=self._wanted > self._target,
        )
