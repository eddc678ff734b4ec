"""Builds the controller of an EngineCore from its scheduler."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from . import _compat, _kvcached, _page
from ._admission import Admission
from ._blocks import Blocks
from ._cached import Cached, CachedCount
from ._channel import Channel
from ._config import Config, prepare_directory
from ._controller import Bound, Controller
from ._doorbell import Doorbell
from ._errors import LullVLLMError, NameTakenError
from ._host import HostBound
from ._orders import Orders
from ._process import room_bytes
from ._requests import Requests
from ._telemetry import Telemetry

logger = logging.getLogger("vllm.lull")

HELLO_S = 20.0
_CLAIM_TRIES = 20
_CLAIM_PAUSE_S = 0.05


class Assembly:
    """The controller with what it holds open. close takes all down, in order."""

    def __init__(self, config: Config, scheduler: Any, baseline: int) -> None:
        self._config = config
        prepare_directory(config.directory)
        self._claim = _claim(config)
        self.lock = threading.RLock()
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._channel: Channel | None = None
        self._controller: Controller | None = None
        self._host: HostBound | None = None
        parallel = scheduler.vllm_config.parallel_config
        self.ranks = parallel.world_size
        self.block_tokens = scheduler.block_size
        kv = scheduler.kv_cache_config
        self.block_bytes = max(t.size for t in kv.kv_cache_tensors) // kv.num_blocks
        self.instance = secrets.randbits(63) | 1
        self.baseline = baseline
        self.mode = _page.MODE_TELEMETRY
        self.workers: list[int] = []
        native = hasattr(self._pool, "free_block_queue")  # kvcached's pool has none
        self._counted = CachedCount(self._pool) if native else None
        self.cached: Cached = self._counted or _kvcached.ElasticCached(self._pool)
        self.requests = Requests(scheduler, self.block_tokens)

    def build(self) -> Controller:
        """Returns the controller, with a bound where this engine can keep one."""
        bound = self._bound()
        page = self._config.path("page")
        _page.create(
            self._config.path("bound"),
            _page.encode(
                _page.BOUND_MAGIC, 0, [self.instance] + [0] * (len(_page.BOUND_FIELDS) - 1)
            ),
        )
        reader = _page.PageReader(self._config.path("bound"), _page.BOUND_MAGIC, _page.BOUND_FIELDS)
        reader.read()
        orders = Orders(reader, self.instance, self._config.lease_s, self._has_room, time.monotonic)
        bell = Doorbell(self._config.path("bell"), self._config.path("sidecar"))
        writer = _page.PageWriter(page, _page.TELEMETRY_MAGIC, _page.TELEMETRY_FIELDS)
        self._controller = Controller(
            self._scheduler,
            Telemetry(writer, self._constants()),
            orders,
            bell,
            self.cached,
            self.requests,
            Admission(self.requests, bound),
            bound,
            self.lock,
            self._initial(),
            alive=lambda: self._channel.alive if self._channel else self.ranks,
        )
        return self._controller

    def _bound(self) -> Bound | None:
        reason = _compat.no_bound(self._scheduler)
        try:
            if not reason:
                from vllm.platforms import current_platform

                if current_platform.is_cpu():
                    return self._host_bound()
                if current_platform.is_cuda():
                    return self._kvcached_bound()
                reason = f"{current_platform.device_name} memory is not supported"
        except LullVLLMError as error:
            reason = str(error)
            self._host = None
        logger.warning(
            "lull: %s; Lull reads this engine's KV cache and sets no bound on it", reason
        )
        return None

    def _host_bound(self) -> HostBound:
        channel = Channel(self._config.path("workers"), self.ranks, self._answered)
        self._channel = channel
        channel.accept_all(HELLO_S)
        for hello in channel.hellos:
            if hello.problem:
                raise LullVLLMError(f"rank {hello.rank}: {hello.problem}")
            if hello.blocks != self._pool.num_gpu_blocks:
                raise LullVLLMError(
                    f"rank {hello.rank} has {hello.blocks} blocks, the scheduler "
                    f"{self._pool.num_gpu_blocks}"
                )
        self.block_bytes = max(hello.block_bytes for hello in channel.hellos)
        self.workers = [hello.pid for hello in channel.hellos]
        self.baseline += sum(h.baseline_bytes for h in channel.hellos if h.pid != os.getpid())
        if self._counted is None:
            raise LullVLLMError("this block pool has no free queue to take blocks from")
        bound = HostBound(
            self._pool, self.block_bytes, self._counted, channel.send, self.lock, self._settled
        )
        self._host = bound
        self.mode = _page.MODE_HOST_PAGES
        return bound

    def _kvcached_bound(self) -> _kvcached.KVCachedBound:
        set_limit = _kvcached.find()
        if set_limit is None:
            raise LullVLLMError(
                "kvcached with control.set_instance_memory_limit is not installed, and a stock "
                "vLLM's pool on CUDA is static"
            )
        self.mode = _page.MODE_KVCACHED
        pool_bytes = (self._pool.num_gpu_blocks - 1) * self.block_bytes
        trim = _kvcached.find_trim()
        return _kvcached.KVCachedBound(set_limit, pool_bytes, self.block_bytes, trim)

    def _answered(self, seq: int, freed: bool, size: int) -> None:
        if self._host is not None:
            self._host.answered(seq, freed, size)

    @property
    def host_blocks(self) -> Blocks | None:
        """The blocks of a bound on host memory, if that is what this engine has."""
        return self._host.blocks if self._host is not None else None

    def _settled(self, size: int, freed: bool, took_s: float) -> None:
        if self._controller is not None:
            self._controller.settled(size, freed, took_s)

    def _has_room(self, unmapped: int) -> bool:
        devices = self.ranks if self.mode == _page.MODE_HOST_PAGES else 0
        return room_bytes() >= unmapped * devices + self._config.margin

    def _initial(self) -> int | None:
        """The bound before any order; never below the longest request that vLLM accepts."""
        if self._config.initial_bound is None:
            return None
        longest: int = -(-self._scheduler.max_model_len // self.block_tokens) * self.block_bytes
        return max(self._config.initial_bound, longest)

    def _constants(self) -> dict[str, int]:
        pids: Sequence[int] = self.workers[:8]
        return {
            "instance": self.instance,
            "engine_pid": os.getpid(),
            "mode": self.mode,
            "ranks": self.ranks,
            "ranks_alive": self.ranks,
            "block_tokens": self.block_tokens,
            "block_bytes": self.block_bytes,
            "pool_blocks": self._pool.num_gpu_blocks - 1,
            "max_model_len": self._scheduler.max_model_len,
            # On a GPU nothing of a process is on the device before it takes device memory.
            "baseline_bytes": self.baseline if self.mode != _page.MODE_KVCACHED else 0,
            **{f"worker_pid_{i}": pid for i, pid in enumerate(pids)},
        }

    def close(self) -> None:
        if self._controller is not None:
            self._controller.close()
        if self._channel is not None:
            self._channel.close()
        self._claim.close()


def _claim(config: Config) -> IO[bytes]:
    """Holds the name for as long as this process lives; a sidecar sees a death by it."""
    path = config.path("lock")
    lock = open(path, "wb")  # noqa: SIM115  held open until close
    for _ in range(_CLAIM_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            time.sleep(_CLAIM_PAUSE_S)  # a sidecar that looks holds it for microseconds
    lock.close()
    raise NameTakenError(
        f"another engine uses the name {config.name!r} in {config.directory}; set LULL_VLLM_NAME"
    )
