"""Canaries under random allocation, free, shrink and raise, on a fake and on vLLM's own pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from walk import Walk

pytestmark = pytest.mark.cpu


def run(walk: Walk, events: int) -> None:
    try:
        for _ in range(events):
            walk.act()
            walk.audit()
        walk.settle()
        walk.audit()
        status = walk.engine.bound.status()
        assert status.confirmed and status.pending == 0
        walk.engine.cached.drift = 0
        walk.engine.cached.walk()
        assert walk.engine.cached.drift == 0, "the count of cached blocks drifted"
    finally:
        walk.close()


@pytest.mark.parametrize("seed", range(12))
def test_no_block_loses_its_content(tmp_path: Path, seed: int) -> None:
    run(Walk(tmp_path, seed, depth=1 + seed % 2), 700)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("caching", [True, False])
def test_no_block_of_vllms_own_pool_loses_its_content(
    tmp_path: Path, seed: int, caching: bool
) -> None:
    pool = real_pool(41, caching)
    run(Walk(tmp_path, 100 + seed, pool=pool, depth=1 + seed % 2), 700)


def real_pool(blocks: int, caching: bool) -> Any:
    """vLLM's BlockPool with the fake pool's way to set a hash."""
    module = pytest.importorskip("vllm.v1.core.block_pool", reason="vLLM is not installed")

    class Pool(module.BlockPool):  # type: ignore[misc, name-defined]
        def set_hash(self, block: Any, canary: int) -> None:
            self._insert_block_hash(canary.to_bytes(32, "big"), block, num_tokens=16)

    return Pool(num_gpu_blocks=blocks, enable_caching=caching, hash_block_size=16)
