"""Where the package holds on to vLLM: wrappers on classes and on one object each, no patched files.

Every wrapper calls vLLM's own method with the same arguments and returns what it returned, but for
the three that docs/VLLM.md lists: allocate_slots may say "not now" for a request that could not
finish under the bound, get_usage leaves withdrawn blocks out, and reset_prefix_cache sees the pool
whole.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from . import _wire
from ._advice import Advice
from ._assemble import Assembly
from ._config import Config
from ._errors import LayoutError
from ._process import page_size
from ._puncher import Pages, Puncher
from ._ranges import TensorLayout, layout_of

logger = logging.getLogger("vllm.lull")

_ATTRIBUTE = "_lull"


def hook_scheduler(config: Config, baseline: int) -> None:
    """Gives each scheduler of this process a controller that sees each of its steps."""
    from vllm.v1.core.sched.scheduler import Scheduler

    init, schedule, update = Scheduler.__init__, Scheduler.schedule, Scheduler.update_from_output
    bitmask, shutdown = Scheduler.get_grammar_bitmask, Scheduler.shutdown

    @functools.wraps(init)
    def lull_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _attach(self, config, baseline)

    @functools.wraps(schedule)
    def lull_schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        controller = getattr(self, _ATTRIBUTE, None)
        if controller is None:
            return schedule(self, *args, **kwargs)
        controller.before_schedule()
        output = schedule(self, *args, **kwargs)
        controller.after_schedule(output)
        return output

    @functools.wraps(bitmask)
    def lull_bitmask(self: Any, *args: Any, **kwargs: Any) -> Any:
        # What EngineCore asks for between handing the worker a step and waiting for it.
        result = bitmask(self, *args, **kwargs)
        controller = getattr(self, _ATTRIBUTE, None)
        if controller is not None:
            controller.while_it_runs()
        return result

    @functools.wraps(update)
    def lull_update(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = update(self, scheduler_output, *args, **kwargs)
        controller = getattr(self, _ATTRIBUTE, None)
        if controller is not None:
            controller.after_update(scheduler_output)
        return result

    @functools.wraps(shutdown)
    def lull_shutdown(self: Any) -> None:
        shutdown(self)
        assembly = getattr(self, _ATTRIBUTE + "_assembly", None)
        if assembly is not None:
            assembly.close()

    Scheduler.__init__ = lull_init
    Scheduler.schedule = lull_schedule
    Scheduler.get_grammar_bitmask = lull_bitmask
    Scheduler.update_from_output = lull_update
    Scheduler.shutdown = lull_shutdown


def hook_engine_loop() -> None:
    """Lets another thread ask for a tick on the scheduler's thread, through vLLM's own queue."""
    from vllm.v1.engine import EngineCoreRequestType
    from vllm.v1.engine.core import EngineCoreProc

    handle, loop = EngineCoreProc._handle_client_request, EngineCoreProc.run_busy_loop

    @functools.wraps(handle)
    def lull_handle(self: Any, request_type: Any, request: Any) -> None:
        handle(self, request_type, request)
        if request_type == EngineCoreRequestType.WAKEUP:
            controller = getattr(self.scheduler, _ATTRIBUTE, None)
            if controller is not None:
                controller.tick()

    @functools.wraps(loop)
    def lull_loop(self: Any) -> Any:
        controller = getattr(self.scheduler, _ATTRIBUTE, None)
        if controller is not None:
            wakeup = (EngineCoreRequestType.WAKEUP, None)
            controller.attach(lambda: self.input_queue.put_nowait(wakeup))
        return loop(self)

    EngineCoreProc._handle_client_request = lull_handle
    EngineCoreProc.run_busy_loop = lull_loop


def _attach(scheduler: Any, config: Config, baseline: int) -> None:
    """Builds the controller; whatever goes wrong here, vLLM starts as if it were not there."""
    assembly = None
    try:
        assembly = Assembly(config, scheduler, baseline)
        controller = assembly.build()
        hook_manager(scheduler.kv_cache_manager, controller, assembly)
        controller.start()
    except Exception as error:
        logger.warning("lull: %s; Lull is disabled and vLLM runs as if it were not there", error)
        if assembly is not None:
            assembly.close()
        return
    setattr(scheduler, _ATTRIBUTE, controller)
    setattr(scheduler, _ATTRIBUTE + "_assembly", assembly)
    logger.info("lull: page %s, %d ranks", config.path("page"), assembly.ranks)


def hook_manager(manager: Any, controller: Any, assembly: Any) -> None:
    """Wraps methods of the scheduler's one KV cache manager and of its block pool."""
    from vllm.v1.request import RequestStatus

    pool = manager.block_pool
    blocks = assembly.host_blocks
    allocate, record = manager.allocate_slots, manager.record_prefix_cache_stats

    def lull_allocate(request: Any, *args: Any, **kwargs: Any) -> Any:
        admission = request.status != RequestStatus.RUNNING
        if admission and controller.must_wait(request):
            controller.fell_short()
            return None
        result = allocate(request, *args, **kwargs)
        if result is None:
            controller.fell_short()
        elif admission:
            controller.started()
        return result

    def lull_record(request: Any, num_hits: int) -> None:
        record(request, num_hits)
        if pool.enable_caching and request.num_preemptions == 0:  # as vLLM's own metric counts
            controller.looked_up(request.num_tokens, num_hits)

    manager.allocate_slots = lull_allocate
    manager.record_prefix_cache_stats = lull_record
    if blocks is None:
        return
    take, reset = pool.get_new_blocks, pool.reset_prefix_cache

    def lull_take(num_blocks: int) -> Any:
        taken = take(num_blocks)
        blocks.allocated(taken)
        return taken

    def lull_usage() -> float:
        inside = blocks.inside
        return 1.0 - pool.get_num_free_blocks() / inside if inside else 0.0

    def lull_reset() -> bool:
        with assembly.lock:
            lent = blocks.everything_inside()
            try:
                done: bool = reset()
            finally:
                blocks.withdraw_again(lent)
        return done

    pool.get_new_blocks = lull_take
    pool.get_usage = lull_usage
    pool.reset_prefix_cache = lull_reset


def hook_worker(config: Config, baseline: int) -> None:
    """Starts the puncher once a CPU worker has its KV tensors."""
    from vllm.v1.worker.cpu_worker import CPUWorker

    initialize = CPUWorker.initialize_from_config

    @functools.wraps(initialize)
    def lull_initialize(self: Any, kv_cache_config: Any) -> None:
        initialize(self, kv_cache_config)
        try:
            start_puncher(
                config, self.rank, kv_cache_config.num_blocks, self.model_runner.kv_caches, baseline
            )
        except Exception as error:
            logger.warning("lull: rank %d: %s; its memory stays where it is", self.rank, error)

    CPUWorker.initialize_from_config = lull_initialize


def start_puncher(config: Config, rank: int, blocks: int, tensors: Any, baseline: int) -> Puncher:
    """Reads the tensors' layout and starts the thread that gives their pages back."""
    pages, block_bytes, problem = None, 0, ""
    try:
        layout = layout_of([tensor_layout(t) for t in tensors], blocks, page_size())
        block_bytes = layout.block_bytes
        pages = Pages(layout, Advice())
        pages.prepare()
    except (LayoutError, OSError) as error:
        problem = str(error)
    hello = _wire.Hello(rank, os.getpid(), os.getppid(), blocks, block_bytes, baseline, problem)
    puncher = Puncher(config.path("workers"), hello, pages)
    puncher.start()
    return puncher


def tensor_layout(tensor: Any) -> TensorLayout:
    """Reads where the rows of a tensor's first dimension lie."""
    size = tensor.element_size()
    steps = zip(tensor.shape[1:], tensor.stride()[1:], strict=True)
    span = (sum((n - 1) * step for n, step in steps) + 1) * size
    return TensorLayout(tensor.data_ptr(), tensor.shape[0], tensor.stride(0) * size, span)
