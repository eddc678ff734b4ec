"""Which vLLM this package works with, and what it refuses with a reason."""

from __future__ import annotations

import re
from typing import Any

# Every version in this range was tested by tests/integration. A newer vLLM may have moved what the
# hooks hold on to, so outside the range the package does nothing.
OLDEST = (0, 32)
BELOW = (0, 33)


def outside_range(version: str) -> str:
    """Returns why this version of vLLM is not supported, or an empty string."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and OLDEST <= (int(match[1]), int(match[2])) < BELOW:
        return ""
    return f"vLLM {version} is outside the tested range >= 0.32, < 0.33"


def missing_parts(scheduler: Any, core: Any, pool: Any) -> str:
    """Returns which of vLLM's classes lack what the hooks need, or an empty string."""
    wanted = (
        (
            scheduler,
            (
                "schedule",
                "get_grammar_bitmask",
                "update_from_output",
                "shutdown",
                "get_request_counts",
            ),
        ),
        (core, ("_handle_client_request", "run_busy_loop")),
        (
            pool,
            (
                "get_new_blocks",
                "free_blocks",
                "touch",
                "_maybe_evict_cached_block",
                "get_usage",
                "reset_prefix_cache",
                "get_num_free_blocks",
            ),
        ),
    )
    absent = [f"{c.__name__}.{n}" for c, names in wanted for n in names if not hasattr(c, n)]
    return f"this vLLM has no {', '.join(absent)}" if absent else ""


def no_bound(scheduler: Any) -> str:
    """Returns why blocks of this engine cannot be withdrawn safely, or an empty string.

    Telemetry works in all these cases.
    """
    config = scheduler.vllm_config
    parallel = config.parallel_config
    speculative = config.speculative_config
    groups = scheduler.kv_cache_config.kv_cache_groups
    if config.kv_transfer_config is not None:
        return "a KV connector may read or write blocks outside the steps of the scheduler"
    if parallel.pipeline_parallel_size > 1:
        return "pipeline parallelism is not tested"
    if parallel.data_parallel_size > 1:
        return "data parallelism is not tested"
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        return "context parallelism is not tested"
    if len(groups) != 1:
        return f"the model has {len(groups)} KV cache groups, and only one is tested"
    if not _full_attention(groups[0].kv_cache_spec):
        return f"KV cache of kind {type(groups[0].kv_cache_spec).__name__} is not tested"
    if speculative is not None and speculative.method not in ("ngram",):
        return f"speculative decoding by {speculative.method} is not tested, only ngram is"
    return ""


def _full_attention(spec: Any) -> bool:
    from vllm.v1.kv_cache_interface import is_full_attention_spec

    return bool(is_full_attention_spec(spec))
