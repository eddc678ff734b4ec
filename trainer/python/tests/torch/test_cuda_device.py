"""The CUDA device on a machine without one: which pool it takes, what it asks PyTorch, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda_rig import MIB, compiler, pool_of

import lull
from lull._errors import ConfigError
from lull._protocol import Budget
from lull._torch import cuda, cuda_books
from lull._torch.cuda import Cuda, CudaPool, choose
from lull._torch.cuda_arena import CudaArenaPool
from lull._torch.cuda_books import TorchBooks
from lull._torch.cuda_settings import CudaSettings
from lull._torch.dry import Floor
from lull._torch.elastic import Elastic
from lull._vmm import VmmError

pytestmark = pytest.mark.cpu

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C compiler for the fake driver")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_opened", {})


def refusing(error: Exception) -> Callable[[int, int, Mapping[str, str]], CudaArenaPool]:
    def make(index: int, handle: int, env: Mapping[str, str]) -> CudaArenaPool:
        raise error

    return make


@pytest.mark.parametrize(
    "error",
    [
        VmmError("lull_vmm_open: no driver: libcuda.so.1: cannot open shared object file"),
        OSError("no C compiler (gcc) to make Lull's arena"),
        AttributeError("module 'torch.cuda' has no attribute 'MemPool'"),
        RuntimeError("CUDA driver version is insufficient"),
        TypeError("memory_snapshot() takes from 0 to 1 positional arguments but 2 were given"),
    ],
)
def test_without_an_arena_the_caching_allocator_is_taken_and_the_log_says_why(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "lull"):
        pool = choose(0, CudaSettings(), {}, refusing(error))
    assert isinstance(pool, CudaPool)
    assert caplog.messages == [
        "on CUDA activations lie in PyTorch's caching allocator, and an order waits for all that is queued: "
        + str(error)
    ]


def test_the_caching_allocator_can_be_chosen_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(choose(0, CudaSettings(pool="caching"), {}, refusing(OSError("never asked"))), CudaPool)
    assert caplog.messages == []


@needs_compiler
def test_a_second_attach_finds_the_arena_of_the_first() -> None:
    made = pool_of()[0]
    assert choose(0, CudaSettings(), {}, lambda index, handle, env: made) is made
    assert choose(0, CudaSettings(), {}, refusing(OSError("open already"))) is made


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"LULL_CUDA_POOL": "slab"}, "one of arena, caching"),
        ({"LULL_CUDA_HANDLE": "3MiB"}, "a multiple of 2MiB"),
        ({"LULL_CUDA_HANDLE": "0"}, "a multiple of 2MiB"),
        ({"LULL_CUDA_HANDLE": "many"}, "a number with B, KiB, MiB or GiB"),
        ({"LULL_CUDA_RUN_AHEAD": "-1"}, "a whole number of blocks"),
        ({"LULL_CUDA_RUN_AHEAD": "two"}, "a whole number of blocks"),
    ],
)
def test_a_wrong_setting_names_key_value_and_rule(env: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        CudaSettings.from_env(env)
    assert next(iter(env)) in str(caught.value)
    assert text in str(caught.value)


def test_settings_come_from_the_environment_and_empty_ones_are_not_set() -> None:
    assert CudaSettings.from_env({"LULL_CUDA_POOL": "", "LULL_CUDA_RUN_AHEAD": ""}) == CudaSettings()
    env = {"LULL_CUDA_POOL": "caching", "LULL_CUDA_HANDLE": "8MiB", "LULL_CUDA_RUN_AHEAD": "0"}
    assert CudaSettings.from_env(env) == CudaSettings("caching", 8 * MIB, 0)


class FakeCuda:
    """The functions of torch.cuda that are used, and the order in which they were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.stats = {"allocated_bytes": (5, 7), "reserved_bytes": (40, 60)}
        self.inside = False
        put = monkeypatch.setattr
        put(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(total_memory=1000))
        put(torch.cuda, "memory_stats_as_nested_dict", self.nested)
        put(torch.cuda, "set_per_process_memory_fraction", lambda part, index: self.calls.append(("fraction", part)))
        put(torch.cuda, "empty_cache", lambda: self.calls.append(("empty", self.inside)))
        put(torch.cuda, "reset_peak_memory_stats", lambda index: self.calls.append("reset"))
        put(torch.cuda, "device", self.device)
        put(torch.cuda, "memory_reserved", lambda index: 40 * MIB)
        put(torch.cuda, "max_memory_reserved", lambda index: 60 * MIB)
        put(torch.cuda, "MemPool", lambda allocator: SimpleNamespace(id=(0, 1), allocator=allocator))
        put(torch.cuda.memory, "CUDAPluggableAllocator", lambda *names: SimpleNamespace(allocator=lambda: names))
        put(cuda_books, "_use_pool", self.use)
        put(cuda_books, "_snapshot", lambda pool, include_traces: [] if pool == (0, 9) else self.segments)
        self.segments = [{"allocated_size": 3}, {"allocated_size": 4}]

    def nested(self, index: int) -> dict[str, Any]:
        return {k: {"all": {"current": now, "peak": most}} for k, (now, most) in self.stats.items()}

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        yield

    @contextmanager
    def use(self, place: Any, index: int) -> Iterator[None]:
        self.inside = True
        self.calls.append(("begin", place.id, torch._C._is_multithreading_enabled()))
        yield
        self.inside = False
        self.calls.append("end")


def test_a_pool_is_routed_with_the_backward_pass_on_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    books = TorchBooks(0, "vmm.so")
    place = books.place()
    assert place.allocator == ("vmm.so", "lull_vmm_alloc", "lull_vmm_free")  # type: ignore[attr-defined]
    with books.route(place):
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()
    assert fake.calls == [("begin", (0, 1), False), "end"]


def test_backward_runs_on_the_calling_thread_where_a_pool_is_routed() -> None:
    """The public switch does what the routing needs: asked of PyTorch itself."""
    import threading

    seen: list[int] = []

    class Where(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(threading.get_ident())
            return grad

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.grad_mode.set_multithreading_enabled(False):
        Where.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert seen == [threading.get_ident()]


def test_old_pools_are_swept_inside_the_new_one_where_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    books = TorchBooks(0, "vmm.so")
    books.sweep(books.place())
    assert fake.calls[1] == ("empty", True)


def test_books_read_the_documented_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    books = TorchBooks(0, "vmm.so")
    assert (books.allocated(), books.peak_allocated(), books.reserved(), books.peak_reserved()) == (5, 7, 40, 60)
    assert books.live([(0, 1), (0, 9)]) == {(0, 1): 7}
    books.reset_peaks()
    assert fake.calls == ["reset"]


def test_the_caching_allocator_is_capped_above_the_floor_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then no higher than the user's own fraction, which close puts back."""
    fake = FakeCuda(monkeypatch)
    fractions = fake.calls
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 300)
    monkeypatch.setattr(cuda, "_fraction", lambda index: 0.9)
    device = Cuda(0, {"LULL_CUDA_POOL": "caching"})
    device.pool.set_cap(100)
    assert fractions == [], "what a model takes before its floor is known is no activation"
    device.settle(400)
    assert fractions == [("fraction", 0.5)]
    for cap in (100, 550):
        device.pool.set_cap(cap)
    device.pool.set_cap(1 << 62)
    device.pool.set_cap(1 << 62)
    assert fractions[1:] == [("fraction", 0.5), ("fraction", 0.9), ("fraction", 0.9)]


def test_the_caching_allocators_base_follows_a_floor_that_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order grants 200 bytes more of floor: they are none of the activations', and the fence moves up by them."""
    fake = FakeCuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 650)
    monkeypatch.setattr(cuda, "_fraction", lambda index: 1.0)
    device = Cuda(0, {"LULL_CUDA_POOL": "caching"})
    model = torch.nn.Linear(4, 1)
    elastic = Elastic(
        *(model, torch.optim.SGD(model.parameters()), device, []),
        release="slots",
        budget=300,
        min_budget=0,
        baseline=50,
    )
    try:
        elastic.floor = Floor(350, 0, 0)
        device.settle(400)
        assert (elastic.hello().held, device.pool.in_use()) == (300, 250)
        elastic.apply(Budget(1, 100, floor=550), lambda ack: None)
        assert elastic.floor.bytes == 550
        assert (elastic.hello().held, device.pool.in_use()) == (100, 50)
        assert fake.calls[-1] == ("fraction", 0.7), "the floor's end and the budget of 100"
        elastic.apply(Budget(2, 100, floor=350), lambda ack: None)
        assert elastic.hello().held == 100, "a floor does not fall"
    finally:
        elastic.close()


def test_why_there_is_no_arena_is_found_out_once(caplog: pytest.LogCaptureFixture) -> None:
    choose(0, CudaSettings(), {}, refusing(OSError("no driver")))
    assert isinstance(choose(0, CudaSettings(), {}, refusing(OSError("never asked"))), CudaPool)
    assert [line.rpartition(": ")[2] for line in caplog.messages] == ["no driver", "no driver"]


@needs_compiler
def test_the_device_counts_what_only_the_arena_has_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    pool, books = pool_of()
    monkeypatch.setattr(cuda, "choose", lambda index, settings, env: pool)
    device = Cuda(0, {})
    pool.enable(True)
    books.alloc(16 * MIB)
    block = pool.vmm.alloc(8 * MIB, 1)
    pool.vmm.free(block, 8 * MIB, 1)
    assert device.bytes() == 48 * MIB, "40 that PyTorch reserved, 8 that are mapped and free"
    assert device.peak_bytes() == 60 * MIB
    assert device.total() == 1000, "half of it is the budget without a sidecar, whatever the host has"


def test_blocks_bound_the_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    monkeypatch.setattr(
        cuda,
        "_Event",
        lambda blocking: SimpleNamespace(record=lambda: None, synchronize=lambda: waits.append("wait")),
    )
    device = Cuda(0, {"LULL_CUDA_POOL": "caching", "LULL_CUDA_RUN_AHEAD": "3"})
    for _ in range(5):
        device.boundary()
    assert len(waits) == 2


def test_a_graph_capture_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 1)
    with pytest.warns(RuntimeWarning, match="no native arena"):
        elastic = lull.attach(model, torch.optim.SGD(model.parameters()), socket="")
    monkeypatch.setattr(elastic.device, "capturing", lambda: True)
    with pytest.raises(lull.RuntimeRefusal, match=r"called while a CUDA graph is captured.*nothing was trained$"):
        elastic.backward(torch.ones(2, 4), lambda x: model(x).mean())
    elastic.close()
    assert model.weight.grad is None
