"""Many ranges go back in one call, in as many as it takes, or one by one on older kernels."""

from __future__ import annotations

import ctypes
import errno
import mmap

import pytest

from lull_vllm import _advice
from lull_vllm._advice import DONTNEED, NOHUGEPAGE, Advice

pytestmark = pytest.mark.cpu

PAGE = mmap.PAGESIZE
PAGES = 4096


@pytest.fixture
def memory() -> mmap.mmap:
    made = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made[:] = b"\1" * len(made)
    return made


def odd_pages(memory: mmap.mmap) -> list[tuple[int, int]]:
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return [(base + n * PAGE, PAGE) for n in range(1, PAGES, 2)]  # more than one call takes


def only_odd_pages_went(memory: mmap.mmap) -> bool:
    return all(memory[n * PAGE] == (n + 1) % 2 for n in range(PAGES))


@pytest.mark.parametrize("many", [True, False])
def test_exactly_the_ranges_go(memory: mmap.mmap, many: bool) -> None:
    advice = Advice(many=many)
    assert advice.drop(odd_pages(memory)) == PAGES // 2 * PAGE
    assert only_odd_pages_went(memory)
    assert advice.drop([]) == 0
    advice.close()


def test_kernel_without_the_one_call_is_asked_once(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    class Old:
        madvise = _advice._libc.madvise

        @staticmethod
        def syscall(*_: object) -> int:
            calls.append(1)
            ctypes.set_errno(errno.EINVAL)
            return -1

    monkeypatch.setattr(_advice, "_libc", Old)
    advice = Advice()
    for _ in range(2):
        memory[:] = b"\1" * len(memory)
        advice.drop(odd_pages(memory))
        assert only_odd_pages_went(memory)
    assert len(calls) <= 1 and not advice.at_once


def test_call_that_stops_half_way_is_finished_range_by_range(
    memory: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short:
        madvise = _advice._libc.madvise

        @staticmethod
        def syscall(*_: object) -> int:
            return PAGE

    monkeypatch.setattr(_advice, "_libc", Short)
    advice = Advice()
    advice.drop(odd_pages(memory))
    assert only_odd_pages_went(memory)
    advice.close()


def test_error_names_the_call() -> None:
    advice = Advice()
    with pytest.raises(OSError, match=r"madvise\(0x1000, 4096, 4\): Cannot allocate memory"):
        advice.give(4096, 4096, DONTNEED)
    with pytest.raises(OSError, match=r"madvise\(0x1000, 4096, 4\): Cannot allocate memory"):
        advice.drop([(4096, 4096)])
    advice.close()


def test_huge_pages_that_the_kernel_does_not_know_are_no_error() -> None:
    Advice().give(4097, 4096, NOHUGEPAGE)  # EINVAL, as without CONFIG_TRANSPARENT_HUGEPAGE
