"""kvcached's limit in-process, against a stand-in of its call: its answers, and how it fails."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from lull_vllm import _kvcached
from lull_vllm._errors import LullVLLMError

pytestmark = pytest.mark.cpu


class KVCached:
    """kvcached.control.set_instance_memory_limit as its source has it, over one pool."""

    def __init__(self, in_use: int, reserved: int = 0) -> None:
        self.in_use = in_use
        self.reserved = reserved  # mapped for the next allocation
        self.quarantined = False
        self.calls: list[tuple[int, int]] = []

    def __call__(self, limit_bytes: int, *, revision: int) -> dict[str, Any]:
        if self.calls and revision < self.calls[-1][1]:
            return {"status": "stale", "reason": ""}
        if self.calls and revision == self.calls[-1][1] and limit_bytes != self.calls[-1][0]:
            return {"status": "conflict", "reason": "revision_reused_with_different_limit"}
        self.calls.append((limit_bytes, revision))
        fits = self.in_use <= limit_bytes
        status = "rejected" if self.quarantined else "applied" if fits else "deferred"
        return {
            "status": status, "mapped_bytes": self.in_use + self.reserved,
            "effective_limit_bytes": limit_bytes if fits else self.in_use,
        }  # fmt: skip

    def trim(self) -> None:
        """Of its KVCacheManager: unmaps what is reserved."""
        self.reserved = 0


def none_needed(blocks: int) -> int:
    return 0


def test_kvcached_limit_is_set_and_asked_again_until_it_holds() -> None:
    kvcached = KVCached(in_use=60)
    bound = _kvcached.KVCachedBound(kvcached, pool_bytes=100, block_bytes=10)
    bound.tick(None, none_needed, 0, 0)
    assert kvcached.calls == [] and bound.status().confirmed
    bound.tick(40, none_needed, 0, 0)
    status = bound.status()
    assert not status.confirmed and status.pending == 2 and status.mapped == 6 and bound.restless
    assert status.bound_bytes == 40
    kvcached.in_use = 30
    bound.tick(40, none_needed, 0, 0)
    assert bound.status().confirmed and kvcached.calls == [(40, 1)] * 3
    bound.tick(None, none_needed, 0, 0)
    assert kvcached.calls[-1] == (100, 2) and bound.status().confirmed
    assert bound.status().withdrawn == 0


def test_kvcached_pages_in_reserve_are_unmapped_when_they_stand_above_the_limit() -> None:
    kvcached = KVCached(in_use=30, reserved=20)
    bound = _kvcached.KVCachedBound(kvcached, 100, 10, kvcached.trim)
    bound.tick(60, none_needed, 0, 0)
    assert bound.status().confirmed and kvcached.reserved == 20, "they fit, and spare the next map"
    bound.tick(40, none_needed, 0, 0)
    assert bound.status().confirmed and bound.status().mapped == 3 and kvcached.reserved == 0


def test_kvcached_pages_in_quarantine_are_waited_for() -> None:
    kvcached = KVCached(in_use=30)
    kvcached.quarantined = True
    bound = _kvcached.KVCachedBound(kvcached, 100, 10)
    bound.tick(40, none_needed, 0, 0)
    assert not bound.status().confirmed and bound.restless
    kvcached.quarantined = False
    bound.tick(40, none_needed, 0, 0)
    assert bound.status().confirmed


def test_kvcached_limit_stays_above_the_largest_request() -> None:
    kvcached = KVCached(in_use=0)
    bound = _kvcached.KVCachedBound(kvcached, pool_bytes=100, block_bytes=10)
    bound.tick(20, lambda blocks: 5, 0, 0)
    status = bound.status()
    assert kvcached.calls == [(50, 1)] and status.clamped and not status.confirmed
    assert status.floor_bytes == 50 and bound.holds(5) and not bound.holds(6) and bound.restless
    bound.tick(20, none_needed, 0, 0)
    assert kvcached.calls[-1] == (20, 2) and bound.status().confirmed


def test_kvcached_that_refuses_is_an_error() -> None:
    def refuse(limit_bytes: int, *, revision: int) -> dict[str, Any]:
        return {"status": "unavailable", "reason": "no_registered_kv_cache_pool"}

    bound = _kvcached.KVCachedBound(refuse, pool_bytes=100, block_bytes=10)
    with pytest.raises(LullVLLMError, match="limit 40, revision 1: no_registered_kv_cache_pool"):
        bound.tick(40, none_needed, 0, 0)


def test_kvcached_is_found_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvcached.control", None)
    assert _kvcached.find() is None
    control = ModuleType("kvcached.control")
    call: Callable[..., Any] = KVCached(0)
    control.set_instance_memory_limit = call  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvcached", ModuleType("kvcached"))
    monkeypatch.setitem(sys.modules, "kvcached.control", control)
    assert _kvcached.find() is call
    monkeypatch.setitem(sys.modules, "kvcached.pool_registry", None)
    _kvcached.find_trim()()  # an older one keeps what is reserved
    registry, pool = ModuleType("kvcached.pool_registry"), KVCached(0, reserved=10)
    registry.get_registered_kv_cache_pools = lambda: [(pool, "main")]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvcached.pool_registry", registry)
    _kvcached.find_trim()()
    assert pool.reserved == 0


def bound_of(answer: Callable[..., Any]) -> _kvcached.KVCachedBound:
    return _kvcached.KVCachedBound(answer, pool_bytes=100, block_bytes=10)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"status": "stale", "reason": ""}, "stale"),
        ({"status": "conflict", "reason": "revision_reused"}, "revision_reused"),
        ({}, "None"),
        (None, "AttributeError: 'NoneType' object has no attribute 'get'"),
        ({"status": "applied"}, "KeyError: 'mapped_bytes'"),
        ({"status": "applied", "mapped_bytes": "some", "effective_limit_bytes": 1}, "ValueError: "),
        (
            {"status": "applied", "mapped_bytes": -1, "effective_limit_bytes": 1},
            "mapped -1, effective 1, want at least 0",
        ),
    ],
)
def test_an_answer_that_says_nothing_usable_is_an_error(answer: Any, text: str) -> None:
    bound = bound_of(lambda limit, revision: answer)
    with pytest.raises(LullVLLMError) as caught:
        bound.tick(40, none_needed, 0, 0)
    assert str(caught.value).startswith(f"kvcached: limit 40, revision 1: {text}")
    assert bound.status().mapped == 0, "and nothing of it is believed"


def test_a_call_that_raises_is_an_error_with_its_limit() -> None:
    def broken(limit: int, *, revision: int) -> dict[str, Any]:
        raise RuntimeError("CUDA driver is gone")

    with pytest.raises(LullVLLMError, match=r"revision 1: RuntimeError: CUDA driver is gone$"):
        bound_of(broken).tick(40, none_needed, 0, 0)


def test_a_reserve_that_cannot_be_unmapped_is_tried_again_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kvcached = KVCached(in_use=30, reserved=20)
    fails = True

    def trim() -> None:
        if fails:
            raise RuntimeError("cuMemUnmap failed")
        kvcached.trim()

    bound = _kvcached.KVCachedBound(kvcached, 100, 10, trim)
    with caplog.at_level(logging.WARNING, "vllm.lull"):
        for _ in range(3):
            bound.tick(40, none_needed, 0, 0)
            assert not bound.status().confirmed and bound.restless
    assert len(caplog.messages) == 1 and "cuMemUnmap failed" in caplog.messages[0]
    fails = False
    bound.tick(40, none_needed, 0, 0)
    assert bound.status().confirmed and bound.status().mapped == 3


def test_more_in_use_than_the_limit_is_never_confirmed_until_it_has_come_down() -> None:
    kvcached = KVCached(in_use=90)
    bound = _kvcached.KVCachedBound(kvcached, 100, 10)
    for used in (90, 70, 50):
        kvcached.in_use = used
        bound.tick(40, none_needed, 0, 0)
        assert not bound.status().confirmed and bound.status().pending == (used - 40) // 10
    kvcached.in_use = 40
    bound.tick(40, none_needed, 0, 0)
    assert bound.status().confirmed and not bound.restless


def test_a_target_above_the_pool_is_the_pool() -> None:
    kvcached = KVCached(in_use=10)
    bound = _kvcached.KVCachedBound(kvcached, 100, 10)
    bound.tick(40, none_needed, 0, 0)
    bound.tick(1 << 40, none_needed, 0, 0)
    assert kvcached.calls[-1] == (100, 2)


def test_a_broken_kvcached_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(_kvcached.importlib, "import_module", broken)
    with pytest.raises(LullVLLMError, match=r"^kvcached cannot be imported: libcuda"):
        _kvcached.find()


def test_a_registry_without_its_call_keeps_what_is_reserved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "kvcached", ModuleType("kvcached"))
    monkeypatch.setitem(sys.modules, "kvcached.pool_registry", ModuleType("kvcached.pool_registry"))
    _kvcached.find_trim()()
