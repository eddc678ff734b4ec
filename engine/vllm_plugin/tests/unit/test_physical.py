"""Bytes given back are free for the kernel, not only gone from RSS: huge pages cannot fake it.

A hole in a huge page lowers RSS while the kernel keeps the page. Where none of the pool lies on
huge pages, RSS is the truth; smaps says whether any does. Both can be read everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from pathlib import Path

import pytest

from lull_vllm._advice import Advice
from lull_vllm._process import own_bytes
from lull_vllm._puncher import Pages
from lull_vllm._ranges import Run, TensorLayout, layout_of

pytestmark = pytest.mark.cpu

MIB = 1 << 20
BLOCK = MIB // 2
BLOCKS = 384
MADV_HUGEPAGE = 14


def huge_bytes(base: int, smaps: str = "/proc/self/smaps") -> int:
    """Returns the bytes on huge pages of the mappings that hold part of the pool at base."""
    total = 0
    inside = False
    with open(smaps, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            word = line.split(maxsplit=1)[0]
            if not word.endswith(":"):
                low, high = (int(side, 16) for side in word.split("-"))
                inside = low < base + BLOCKS * BLOCK and high > base
            elif inside and word == "AnonHugePages:":
                total += int(line.split()[1]) * 1024
    return total


@pytest.mark.parametrize("many", [True, False])
def test_scattered_blocks_of_a_pool_on_huge_pages_are_really_freed(many: bool) -> None:
    memory = mmap.mmap(-1, BLOCKS * BLOCK + 4 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    base = (start + 2 * MIB) // (2 * MIB) * (2 * MIB)
    layout = layout_of([TensorLayout(base, BLOCKS, BLOCK, BLOCK)], BLOCKS, mmap.PAGESIZE)
    pages = Pages(layout, Advice(many=many))
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(MADV_HUGEPAGE)
    fill(base)  # as vLLM does: the whole pool is touched before the plugin sees it

    pages.prepare()
    pages.give_back([Run(0, BLOCKS)])
    assert huge_bytes(base) == 0, "huge pages outlived the return of the whole pool"
    fill(base)
    assert huge_bytes(base) == 0, "the pool came back on huge pages: holes in them free nothing"

    before = own_bytes()
    told = pages.give_back([Run(n, 1) for n in range(0, BLOCKS, 2)])
    freed = before - own_bytes()
    assert told == BLOCKS // 2 * BLOCK
    assert freed > 0.9 * told, f"{told / MIB} MiB given back, RSS lower by {freed / MIB:.1f}"
    assert huge_bytes(base) == 0


def test_huge_pages_of_the_pool_alone_are_counted(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "10000000-10200000 rw-p 00000000 00:00 0 \n"
        "AnonHugePages:      2048 kB\n"
        "20000000-30000000 rw-p 00000000 00:00 0 [anon: pool]\n"
        "AnonHugePages:      6144 kB\n"
        "VmFlags: rd wr mr mw me ac hg \n"
    )
    assert huge_bytes(0x20000000, str(smaps)) == 6 * MIB
    assert huge_bytes(0x40000000, str(smaps)) == 0


def fill(base: int) -> None:
    ctypes.memset(base, 1, BLOCKS * BLOCK)
