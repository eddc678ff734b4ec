"""Bytes given back are free for the kernel, not only gone from RSS: huge pages cannot fake it."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from lull_vllm._process import _cgroup_files
from lull_vllm._puncher import Pages, madvise
from lull_vllm._ranges import Run, TensorLayout, layout_of

pytestmark = pytest.mark.cpu

MIB = 1 << 20
BLOCK = MIB // 2
BLOCKS = 384
MADV_HUGEPAGE = 14


def charged_bytes() -> int:
    """Returns the memory that this process's cgroup is charged for.

    Its memory.stat would not do: it counts what is mapped, as RSS does.
    """
    files = _cgroup_files(Path("/"))
    if not files:
        pytest.skip("no memory cgroup to read")
    return int(files[0][1].read_text())


def test_scattered_blocks_of_a_pool_on_huge_pages_are_really_freed() -> None:
    # Other processes may share the cgroup, so the best of a few tries is ours. Each has a pool of
    # its own: a huge page that was broken up once is no test any more.
    freed = [freed_of_half_a_pool(prepare=True) for _ in range(3)]
    told = BLOCKS // 2 * BLOCK
    assert max(freed) > 0.9 * told, f"{told / MIB} MiB given back, {max(freed) / MIB:.1f} freed"


def freed_of_half_a_pool(prepare: bool) -> int:
    """Gives every second block back and returns by how much the cgroup's charge fell."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, BLOCKS * BLOCK + 4 * MIB, flags=flags)
    memory.madvise(MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    base = (start + 2 * MIB) // (2 * MIB) * (2 * MIB)
    layout = layout_of([TensorLayout(base, BLOCKS, BLOCK, BLOCK)], BLOCKS, mmap.PAGESIZE)
    pages = Pages(layout, madvise)
    fill(base)  # as vLLM does: the whole pool is touched before the plugin sees it
    if prepare:
        pages.prepare()
    pages.give_back([Run(0, BLOCKS)])
    fill(base)
    before = charged_bytes()
    assert pages.give_back([Run(n, 1) for n in range(0, BLOCKS, 2)]) == BLOCKS // 2 * BLOCK
    return before - charged_bytes()


def fill(base: int) -> None:
    ctypes.memset(base, 1, BLOCKS * BLOCK)
