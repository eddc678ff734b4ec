"""The bound on CUDA: kvcached's own limit, set in-process. Written to its interface, not measured.

kvcached (pip install kvcached, ENABLE_KVCACHED=true) replaces vLLM's static pool with pages that it
maps and unmaps. Its limit is applied on the scheduler's thread, without the 100 ms poll of its
shared segment. In use above the limit it answers "deferred": nothing is preempted by it, and each
call again says how far it came.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import LullVLLMError
from ._host import Status

logger = logging.getLogger("vllm.lull")

SetLimit = Callable[..., Mapping[str, Any]]
Trim = Callable[[], None]

_WAITING = ("deferred", "rejected")  # more in use than the limit; pages in quarantine


def find() -> SetLimit | None:
    """Returns kvcached's limit call, or None if this kvcached has none or is not there.

    Raises LullVLLMError where it is there and broken.
    """
    try:
        control = importlib.import_module("kvcached.control")
    except ModuleNotFoundError:
        return None
    except Exception as error:
        raise LullVLLMError(f"kvcached cannot be imported: {error}") from error
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
    pools = getattr(registry, "get_registered_kv_cache_pools", tuple)

    def trim() -> None:
        for manager, *_ in pools():
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
        self._trim_failed = ""

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
            self._unmap_reserve()
            applied = self._ask(wanted)
        self._settled = applied and self._mapped <= wanted

    def _unmap_reserve(self) -> None:
        """What stays mapped is above the limit at the next tick, and tried again."""
        try:
            self._trim()
        except Exception as error:
            if self._trim_failed != (said := str(error)):
                self._trim_failed = said
                logger.warning("lull: kvcached's reserve was not unmapped (%s); tried again", said)

    def _ask(self, wanted: int) -> bool:
        """Sets the limit, or asks again how far it came; returns whether it is in force."""
        what = f"kvcached: limit {wanted}, revision {self._revision}"
        try:
            answer = self._set_limit(wanted, revision=self._revision)
            status = str(answer.get("status"))
            waits = status in _WAITING
            if not waits and status != "applied":
                raise LullVLLMError(f"{what}: {answer.get('reason') or status}")
            mapped = int(answer["mapped_bytes"])
            effective = int(answer["effective_limit_bytes"])
        except LullVLLMError:
            raise
        except Exception as error:
            raise LullVLLMError(f"{what}: {type(error).__name__}: {error}") from error
        if min(mapped, effective) < 0:
            raise LullVLLMError(f"{what}: mapped {mapped}, effective {effective}, want at least 0")
        self._mapped, self._effective = mapped, effective
        return not waits

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
