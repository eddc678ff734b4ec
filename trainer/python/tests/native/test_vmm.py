"""The CUDA arena on a driver that only keeps books: what it takes, what it gives back, and when."""

from __future__ import annotations

import os
import threading

import pytest
from vmm_rig import GRAIN, MIB, arena, compiler

from lull._vmm import VmmError

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C compiler for the fake driver")]

HANDLE = 8 * MIB


def test_a_block_brings_the_handles_it_touches_and_no_more() -> None:
    vmm, driver = arena()
    vmm.alloc(20 * MIB)
    assert vmm.stats.resident == driver.used() == 3 * HANDLE
    vmm.alloc(4 * MIB)  # the rest of the third handle
    assert (vmm.stats.resident, vmm.stats.in_use, vmm.stats.blocks) == (3 * HANDLE, 24 * MIB, 2)


def test_a_handle_goes_back_only_when_its_last_use_is_over_and_nothing_waits_for_it() -> None:
    vmm, driver = arena()
    block = vmm.alloc(HANDLE, stream=1)
    driver.launch(1, block, HANDLE)
    vmm.free(block, HANDLE, stream=1)
    assert vmm.trim(0) == 0, "a queued kernel will still use it"
    assert (vmm.stats.pending, vmm.free_bytes()) == (HANDLE, HANDLE)
    driver.run(1, 1)
    assert vmm.trim(0) == 0, "the event after the kernel has not come"
    driver.run_all()
    assert (vmm.trim(0), vmm.stats.pending, driver.used()) == (HANDLE, 0, 0)
    assert driver.violations() == ""


def test_what_is_complete_goes_first_and_the_rest_is_left_to_the_next_trim() -> None:
    vmm, driver = arena()
    busy, idle = vmm.alloc(HANDLE, stream=1), vmm.alloc(HANDLE, stream=2)
    driver.launch(1, busy, HANDLE)
    vmm.free(busy, HANDLE, stream=1)
    vmm.free(idle, HANDLE, stream=2)
    driver.run(2)
    assert vmm.trim(0) == HANDLE
    assert driver.mapped(busy)
    assert not driver.mapped(idle)
    driver.run(1)
    assert vmm.trim(0) == HANDLE


def test_trim_gives_back_only_what_it_was_asked_for() -> None:
    vmm, driver = arena()
    blocks = [vmm.alloc(HANDLE) for _ in range(6)]
    for block in blocks:
        vmm.free(block, HANDLE)
    driver.run_all()
    assert vmm.trim(3 * HANDLE + 1) == 3 * HANDLE
    assert vmm.trim(3 * HANDLE) == 0
    assert vmm.stats.resident == 3 * HANDLE == driver.used()


def test_a_live_block_pins_its_own_handles_alone() -> None:
    vmm, driver = arena()
    blocks = [vmm.alloc(HANDLE) for _ in range(5)]
    for block in (*blocks[:2], *blocks[3:]):
        vmm.free(block, HANDLE)
    driver.run_all()
    assert vmm.trim(0) == 4 * HANDLE
    assert driver.mapped(blocks[2])


def test_freed_handles_are_cached_and_used_again_without_the_driver() -> None:
    vmm, driver = arena()
    block = vmm.alloc(3 * HANDLE, stream=1)
    vmm.free(block, 3 * HANDLE, stream=1)
    made = driver.calls("cuMemCreate")
    assert vmm.alloc(2 * HANDLE, stream=1) == block
    assert driver.calls("cuMemCreate") == made


def test_another_stream_waits_on_the_device_for_the_last_use() -> None:
    vmm, driver = arena()
    block = vmm.alloc(HANDLE, stream=1)
    driver.launch(1, block, HANDLE)
    vmm.free(block, HANDLE, stream=1)
    assert vmm.alloc(HANDLE, stream=2) == block
    driver.launch(2, block, HANDLE)
    assert driver.run(2) == 0, "it waits for the event of stream 1"
    driver.run_all()
    assert driver.violations() == ""


def test_uses_by_more_streams_than_there_are_places_are_all_waited_for() -> None:
    vmm, driver = arena(handle=16 * MIB)
    blocks = {stream: vmm.alloc(GRAIN, stream) for stream in range(1, 8)}
    for stream, block in blocks.items():
        driver.launch(stream, block, GRAIN)
        vmm.free(block, GRAIN, stream)
    for stream in reversed(blocks):
        driver.run(stream)
        if stream > 1:
            vmm.trim(0)
    driver.run_all()
    assert vmm.trim(0) == 16 * MIB
    assert driver.violations() == ""


def test_every_handle_of_a_block_has_a_place_for_its_last_use() -> None:
    vmm, driver = arena(handle=16 * MIB)
    vmm.alloc(14 * MIB, stream=9)
    across = vmm.alloc(2 * GRAIN, stream=6)
    assert (across - vmm.stats.base) % (16 * MIB) == 14 * MIB, "it lies in two handles"
    for stream in range(1, 6):
        block = vmm.alloc(GRAIN, stream)
        driver.launch(stream, block, GRAIN)
        vmm.free(block, GRAIN, stream)
    driver.launch(6, across, 2 * GRAIN)
    vmm.free(across, 2 * GRAIN, stream=6)
    for stream in range(6, 0, -1):
        driver.run(stream)
        vmm.trim(0)
    driver.run_all()
    vmm.trim(0)
    assert driver.used() == 16 * MIB
    assert vmm.stats.lost == 0
    assert driver.violations() == ""


def test_a_free_handle_under_the_best_place_is_no_reason_to_refuse_another_place() -> None:
    vmm, driver = arena()
    first, second, half = vmm.alloc(HANDLE), vmm.alloc(HANDLE), vmm.alloc(2 * GRAIN)
    vmm.free(first, HANDLE)
    vmm.free(second, HANDLE)
    driver.run_all()
    assert vmm.trim(2 * HANDLE) == HANDLE
    assert not driver.mapped(second)
    vmm.set_cap(2 * HANDLE)
    assert vmm.alloc(6 * GRAIN) == half + 2 * GRAIN
    assert vmm.stats.resident == 2 * HANDLE


def test_the_cap_is_checked_before_bytes_are_taken_and_the_text_says_all() -> None:
    vmm, driver = arena()
    vmm.set_cap(2 * HANDLE)
    assert vmm.alloc(2 * HANDLE)
    made = driver.calls("cuMemCreate")
    assert vmm.alloc(GRAIN) == 0
    assert driver.calls("cuMemCreate") == made
    assert vmm.why() == (
        f"lull_vmm_alloc: {GRAIN} bytes need {HANDLE} more in handles of {HANDLE}, which is {HANDLE} above the cap of "
        f"{2 * HANDLE}, with {2 * HANDLE} resident; nothing was taken"
    )
    assert vmm.stats.failures == 1
    assert vmm.wait_short(1_000_000) == HANDLE


def test_above_the_cap_other_free_handles_go_first() -> None:
    vmm, driver = arena()
    vmm.set_cap(3 * HANDLE)
    first, keep = vmm.alloc(HANDLE), vmm.alloc(GRAIN)
    vmm.free(first, HANDLE)
    driver.run_all()
    assert vmm.alloc(2 * HANDLE), "the first handle is too small for it, and gives its place"
    assert vmm.stats.resident <= 3 * HANDLE
    assert driver.mapped(keep)


def test_a_lower_cap_takes_nothing_away_by_itself() -> None:
    vmm, _ = arena()
    block = vmm.alloc(4 * HANDLE)
    vmm.set_cap(HANDLE)
    assert vmm.stats.resident == 4 * HANDLE
    vmm.free(block, 4 * HANDLE)
    assert vmm.alloc(3 * HANDLE) == block, "cached handles are within what is there"


def test_a_device_without_memory_refuses_after_cached_handles_were_tried() -> None:
    vmm, driver = arena(capacity=3 * HANDLE)
    first, keep = vmm.alloc(HANDLE), vmm.alloc(HANDLE)
    vmm.free(first, HANDLE)
    driver.run_all()
    assert vmm.alloc(2 * HANDLE), "the cached handle was given back for it"
    assert vmm.alloc(2 * HANDLE) == 0
    assert vmm.why() == "cuMemCreate: CUDA error 2 (out of memory)"
    assert vmm.stats.resident == driver.used() <= 3 * HANDLE
    assert driver.mapped(keep)


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_failure_while_a_block_is_brought_leaves_nothing_behind(call: str) -> None:
    vmm, driver = arena()
    driver.fail(call, nth=2, code=700)
    assert vmm.alloc(3 * HANDLE) == 0
    assert vmm.why() == f"{call}: CUDA error 700"
    assert vmm.stats.resident == driver.used() == HANDLE
    assert vmm.stats.in_use == 0
    assert vmm.stats.lost == 0
    assert vmm.trim(0) == HANDLE
    assert driver.used() == 0
    assert vmm.alloc(3 * HANDLE), "the next try has what it needs"
    assert driver.violations() == ""


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease"])
def test_what_the_driver_does_not_take_back_is_counted_and_never_used_again(call: str) -> None:
    vmm, driver = arena()
    block = vmm.alloc(2 * HANDLE)
    vmm.free(block, 2 * HANDLE)
    driver.run_all()
    driver.fail(call, code=999)
    assert vmm.trim(0) == HANDLE
    assert vmm.stats.lost == vmm.stats.resident == driver.used() == HANDLE
    assert vmm.why() == f"{call}: CUDA error 999"
    again = vmm.alloc(2 * HANDLE)
    assert again
    assert again not in (block, block + HANDLE)
    assert driver.violations() == ""


@pytest.mark.parametrize("call", ["cuEventCreate", "cuEventRecord"])
def test_a_handle_whose_last_use_is_not_known_is_never_unmapped_or_given_out(call: str) -> None:
    vmm, driver = arena()
    block, other = vmm.alloc(HANDLE), vmm.alloc(HANDLE)
    driver.fail(call, code=1)
    vmm.free(block, HANDLE)
    vmm.free(other, HANDLE)
    driver.run_all()
    assert vmm.trim(0) == HANDLE
    assert driver.mapped(block)
    assert vmm.stats.lost == HANDLE
    assert vmm.alloc(HANDLE) == other


def test_an_event_that_cannot_be_asked_counts_as_not_complete() -> None:
    vmm, driver = arena()
    block = vmm.alloc(HANDLE)
    vmm.free(block, HANDLE)
    driver.run_all()
    driver.fail("cuEventQuery", code=719)
    assert vmm.trim(0) == 0
    assert vmm.trim(0) == HANDLE


def test_a_stream_that_cannot_be_made_to_wait_gets_no_block() -> None:
    vmm, driver = arena()
    block = vmm.alloc(HANDLE, stream=1)
    driver.launch(1, block, HANDLE)
    vmm.free(block, HANDLE, stream=1)
    driver.fail("cuStreamWaitEvent", code=400)
    assert vmm.alloc(HANDLE, stream=2) == 0
    assert vmm.why() == "cuStreamWaitEvent: CUDA error 400"
    assert vmm.stats.in_use == 0


@pytest.mark.parametrize(
    "call",
    [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
        "cuMemGetAllocationGranularity",
        "cuMemAddressReserve",
    ],
)
def test_a_driver_that_cannot_is_named_with_its_error(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import vmm_rig

    built = vmm_rig.Driver.__init__

    def failing(self: vmm_rig.Driver, capacity: int) -> None:
        built(self, capacity)
        self.fail(call, code=801)

    monkeypatch.setattr(vmm_rig.Driver, "__init__", failing)
    with pytest.raises(VmmError, match=f"^lull_vmm_open: {call}: CUDA error 801$"):
        arena()


def test_sizes_that_no_device_takes_are_refused() -> None:
    with pytest.raises(VmmError, match="handles of 3145728 bytes: want a multiple of 2097152 and of the device's"):
        arena(handle=3 * MIB)
    with pytest.raises(VmmError, match="a range of 1048576 bytes: want at least a handle of 8388608"):
        arena(range_bytes=MIB)


def test_without_a_driver_it_says_so() -> None:
    from lull._build import VMM, library
    from lull._vmm import Vmm

    built = library(VMM, os.environ)
    assert built is not None
    try:
        import ctypes

        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(VmmError, match=r"^lull_vmm_open: no driver: libcuda\.so\.1: cannot open shared object"):
            Vmm(built, device=0, range_bytes=1 << 30)


def test_more_than_the_range_is_refused() -> None:
    vmm, _ = arena(range_bytes=64 * MIB)
    assert vmm.alloc(65 * MIB) == 0
    assert vmm.alloc(64 * MIB)
    assert vmm.alloc(GRAIN) == 0
    assert vmm.why() == f"lull_vmm_alloc: no address space for {GRAIN} bytes"


def test_another_device_is_not_served() -> None:
    vmm, _ = arena()
    assert vmm._lib.lull_vmm_alloc(GRAIN, 1, None) is None


def test_wake_ends_a_wait() -> None:
    vmm, _ = arena()
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(vmm.wait_short(30_000_000)))
    waiting.start()
    vmm.wake()
    waiting.join(30)
    assert seen == [1]


def test_a_forked_child_is_served_nothing_and_frees_nothing() -> None:
    vmm, driver = arena()
    block = vmm.alloc(HANDLE)
    child = os.fork()
    if child == 0:
        fine = vmm.alloc(HANDLE) == 0 and vmm.trim(0) == 0
        vmm.free(block, HANDLE)
        os._exit(0 if fine and vmm.stats.in_use == HANDLE else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert driver.used() == HANDLE
