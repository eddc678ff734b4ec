"""Lull's plugin for vLLM: telemetry, a bound and real bytes for the KV cache.

vLLM calls register in each of its processes, through the entry point vllm.general_plugins. It
changes no file of vLLM; docs/VLLM.md says which methods it wraps and what it never touches.
"""

from __future__ import annotations

import logging

__all__ = ["__version__", "register"]
__version__ = "0.1.0"


def register() -> None:
    """Hooks this process. Outside the tested range it says so once and does nothing."""
    logger = logging.getLogger("vllm.lull")
    try:
        reason = _register()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        logger.warning("lull: %s; Lull is disabled and vLLM runs as if it were not there", reason)


def _register() -> str:
    from vllm.version import __version__ as vllm_version

    from . import _compat, _hooks
    from ._config import Config
    from ._process import own_bytes

    config = Config.from_env()
    if not config.enabled:
        return "LULL_VLLM=0"
    reason = _compat.outside_range(vllm_version)
    if reason:
        return reason
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc

    reason = _compat.missing_parts(Scheduler, EngineCoreProc, BlockPool)
    if reason:
        return reason
    baseline = own_bytes()
    _hooks.hook_scheduler(config, baseline)
    _hooks.hook_engine_loop()
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _hooks.hook_worker(config, baseline)
    return ""
