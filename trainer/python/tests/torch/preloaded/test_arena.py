"""The native arena by itself: blocks never overlap or lose their bytes, the cap holds, fork is safe."""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lull._arena import Arena

pytestmark = pytest.mark.cpu

MIB = 1 << 20
UNIT = 2 * MIB
libc = ctypes.CDLL(None)
libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free.restype = None
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.realloc.restype = ctypes.c_void_p
libc.malloc_usable_size.argtypes = [ctypes.c_void_p]
libc.malloc_usable_size.restype = ctypes.c_size_t


@pytest.fixture
def arena() -> Iterator[Arena]:
    found = Arena.preloaded()
    assert found is not None
    found.serve_all(True)
    found.enable(True)
    found.policy(0, False)
    found.set_cap(1 << 60)
    yield found
    found.enable(False)
    found.serve_all(False)
    found.set_cap(1 << 60)
    found.trim(0)
    assert found.stats.in_use == 0
    assert found.stats.resident == 0


def take(size: int) -> int:
    """An address, or 0 when refused."""
    out = ctypes.c_void_p()
    return (out.value or 0) if libc.posix_memalign(ctypes.byref(out), 64, size) == 0 else 0


def ours(arena: Arena, address: int) -> bool:
    return arena.stats.base <= address < arena.stats.base + arena.stats.range


def anonymous() -> int:
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("RssAnon"))


def test_small_requests_stay_with_libc(arena: Arena) -> None:
    small, large = take(4096), take(MIB)
    assert not ours(arena, small)
    assert ours(arena, large)
    libc.free(small)
    libc.free(large)


def test_while_disabled_nothing_new_is_served_but_old_blocks_are_freed(arena: Arena) -> None:
    inside = take(MIB)
    arena.enable(False)
    outside = take(MIB)
    assert ours(arena, inside)
    assert not ours(arena, outside)
    libc.free(inside)
    libc.free(outside)
    assert arena.stats.in_use == 0


def test_freed_blocks_are_cached_and_reused(arena: Arena) -> None:
    first = take(8 * MIB)
    libc.free(first)
    assert arena.stats.resident == 8 * MIB
    assert arena.cached() == 8 * MIB
    assert take(8 * MIB) == first
    assert arena.stats.resident == 8 * MIB
    libc.free(first)


def test_trim_gives_bytes_back_to_the_kernel(arena: Arena) -> None:
    block = take(64 * MIB)
    ctypes.memset(block, 1, 64 * MIB)
    libc.free(block)
    before = anonymous()
    assert arena.trim(16 * MIB) == 48 * MIB
    assert before - anonymous() > 46 * MIB
    assert arena.stats.resident == 16 * MIB


def test_trim_never_touches_a_live_block(arena: Arena) -> None:
    blocks = [take(3 * MIB + 70_000) for _ in range(12)]
    for i, block in enumerate(blocks):
        ctypes.memset(block, i + 1, 3 * MIB + 70_000)
    for block in blocks[::2]:
        libc.free(block)
    arena.trim(0)
    for i, block in enumerate(blocks):
        if i % 2:
            assert set(ctypes.string_at(block, 3 * MIB + 70_000)) == {i + 1}
            libc.free(block)


def test_resident_counts_every_unit_that_a_block_touches(arena: Arena) -> None:
    blocks = [take(300_000) for _ in range(20)]
    assert arena.stats.in_use >= 20 * 300_000
    assert arena.stats.resident % UNIT == 0
    assert arena.stats.resident <= 20 * 300_000 + 2 * UNIT
    for block in blocks:
        libc.free(block)


def test_cap_gives_cached_units_back_before_it_refuses(arena: Arena) -> None:
    one, two = take(8 * MIB), take(8 * MIB)
    libc.free(one)
    arena.set_cap(16 * MIB)
    three = take(8 * MIB)
    assert ours(arena, three)
    four = take(10 * MIB)
    assert four == 0
    assert arena.stats.failures >= 1
    assert arena.stats.resident <= 16 * MIB
    libc.free(two)
    libc.free(three)


def test_fragments_are_no_excuse_to_pass_the_cap(arena: Arena) -> None:
    blocks = [take(UNIT) for _ in range(8)]
    for block in blocks[::2]:
        libc.free(block)
    arena.set_cap(16 * MIB)
    large = take(8 * MIB)  # fits into no hole: the four holes go back, the block lies elsewhere
    assert ours(arena, large)
    assert arena.stats.resident <= 16 * MIB
    for block in [*blocks[1::2], large]:
        libc.free(block)


def test_a_request_above_the_cap_waits_for_memory_that_another_thread_frees(arena: Arena) -> None:
    arena.set_cap(8 * MIB)
    arena.policy(60_000_000, False)
    first = take(8 * MIB)
    seen: list[int] = []

    def steward() -> None:
        seen.append(arena.wait_short(60_000_000))
        libc.free(first)

    helper = threading.Thread(target=steward)
    helper.start()
    second = take(8 * MIB)  # ctypes releases the interpreter lock, as torch does
    helper.join()
    assert ours(arena, second)
    assert seen == [8 * MIB]
    assert arena.stats.resident <= 8 * MIB
    libc.free(second)


def test_a_raised_cap_wakes_a_waiting_request(arena: Arena) -> None:
    arena.set_cap(8 * MIB)
    arena.policy(60_000_000, False)
    first = take(8 * MIB)

    def steward() -> None:
        arena.wait_short(60_000_000)
        arena.set_cap(64 * MIB)

    helper = threading.Thread(target=steward)
    helper.start()
    second = take(8 * MIB)
    helper.join()
    assert second
    libc.free(first)
    libc.free(second)


def test_fail_ends_a_wait_at_once(arena: Arena) -> None:
    arena.set_cap(4 * MIB)
    arena.policy(60_000_000, False)
    first = take(4 * MIB)

    def steward() -> None:
        arena.wait_short(60_000_000)
        arena.fail(True)

    helper = threading.Thread(target=steward)
    helper.start()
    assert take(4 * MIB) == 0
    helper.join()
    arena.fail(False)
    libc.free(first)


def test_overdraft_is_served_and_counted(arena: Arena) -> None:
    arena.set_cap(4 * MIB)
    arena.policy(0, True)
    before = arena.stats.overdrafts
    first, second = take(4 * MIB), take(4 * MIB)
    assert ours(arena, second)
    assert arena.stats.overdrafts == before + 1
    libc.free(first)
    libc.free(second)


def test_realloc_and_usable_size_know_arena_blocks(arena: Arena) -> None:
    block = take(MIB)
    assert libc.malloc_usable_size(block) >= MIB
    ctypes.memset(block, 7, MIB)
    moved = libc.realloc(block, 2 * MIB)
    assert ctypes.string_at(moved, MIB) == bytes([7]) * MIB
    libc.free(moved)
    assert arena.stats.in_use == 0


def test_a_forked_child_reads_its_blocks_and_serves_none(arena: Arena) -> None:
    block = take(MIB)
    ctypes.memset(block, 9, MIB)
    child = os.fork()
    if child == 0:
        fine = ctypes.string_at(block, MIB) == bytes([9]) * MIB and not ours(arena, take(MIB))
        libc.free(block)
        os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ctypes.string_at(block, MIB) == bytes([9]) * MIB
    libc.free(block)


def test_threads_with_canaries_while_another_trims(arena: Arena) -> None:
    over = threading.Event()
    broken: list[str] = []

    def trimmer() -> None:
        while not over.wait(0.0003):
            arena.trim(random.Random().randrange(0, 64 * MIB))

    def worker(seed: int) -> None:
        draw = random.Random(seed)
        live: list[tuple[int, int, int]] = []
        for turn in range(700):
            if len(live) > 8 or (live and draw.random() < 0.45):
                block, size, mark = live.pop(draw.randrange(len(live)))
                for at in (0, size // 2, size - 64):
                    if ctypes.string_at(block + at, 64) != bytes([mark]) * 64:
                        broken.append(f"worker {seed} turn {turn}: block of {size} at {at}")
                libc.free(block)
                continue
            size = draw.choice([40_000, 300_000, MIB, 3 * MIB + 5, 6 * MIB])
            block = take(size)
            if block:
                mark = draw.randrange(1, 255)
                ctypes.memset(block, mark, size)
                live.append((block, size, mark))
        for block, _, _ in live:
            libc.free(block)

    arena.set_cap(96 * MIB)
    helper = threading.Thread(target=trimmer)
    helper.start()
    workers = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    over.set()
    helper.join()
    assert broken == []
    assert arena.stats.resident <= 96 * MIB
    assert arena.stats.blocks == 0


def test_random_walk_matches_a_slow_model(arena: Arena) -> None:
    draw = random.Random(5)
    live: dict[int, int] = {}
    for _ in range(3000):
        if live and draw.random() < 0.5:
            block = draw.choice(list(live))
            del live[block]
            libc.free(block)
        else:
            size = draw.randrange(32_768, 5 * MIB)
            block = take(size)
            assert ours(arena, block)
            assert all(block + size <= other or other + length <= block for other, length in live.items())
            live[block] = size
        if draw.random() < 0.05:
            arena.trim(draw.randrange(0, 128 * MIB))
        touched = {u for b, n in live.items() for u in range(b // UNIT, (b + n - 1) // UNIT + 1)}
        assert arena.stats.resident >= len(touched) * UNIT
        assert arena.stats.resident == len(touched) * UNIT + arena.cached()
    for block in live:
        libc.free(block)
