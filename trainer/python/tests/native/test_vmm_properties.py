"""Any sequence of requests, kernels, trims and caps, against a slow model that knows every handle and its last uses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vmm_rig import GRAIN, MIB, Driver, arena, compiler

from lull._vmm import Vmm

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C compiler for the fake driver")]

HANDLE = 8 * MIB
PER = HANDLE // GRAIN
COUNT = 24
QUIET = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

STEP = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 9 * MIB // GRAIN * 2), st.integers(1, 3)),
    st.tuples(st.just("free"), st.integers(0, 30), st.integers(0, 0)),
    st.tuples(st.just("launch"), st.integers(0, 30), st.integers(1, 3)),
    st.tuples(st.just("run"), st.integers(1, 3), st.integers(1, 5)),
    st.tuples(st.just("trim"), st.integers(0, COUNT), st.integers(0, 0)),
    st.tuples(st.just("cap"), st.integers(0, COUNT), st.integers(0, 0)),
)


@dataclass
class Slow:
    """Every grain by itself."""

    vmm: Vmm
    driver: Driver
    live: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Address: grains, stream."""
    last: dict[int, dict[int, int]] = field(default_factory=dict)
    """Handle: stream: how many of its operations must have run."""
    cap: int = 1 << 60

    def handle(self, index: int) -> int:
        return self.vmm.stats.base + index * HANDLE

    def touched(self, address: int, grains: int) -> set[int]:
        first = (address - self.vmm.stats.base) // GRAIN
        return {grain // PER for grain in range(first, first + grains)}

    def mapped(self) -> set[int]:
        return {i for i in range(COUNT) if self.driver.mapped(self.handle(i))}

    def used(self) -> set[int]:
        return {h for address, (grains, _) in self.live.items() for h in self.touched(address, grains)}

    def quiet(self, handle: int) -> bool:
        return all(self.driver.ran(stream) >= at for stream, at in self.last.get(handle, {}).items())

    def held_fast(self) -> set[int]:
        """Mapped, and not to be unmapped now."""
        used = self.used()
        return {h for h in self.mapped() if h in used or not self.quiet(h)}

    def fits(self, grains: int) -> bool:
        """Whether any place whatever serves a block under the cap once all that may go has gone."""
        taken = {
            (address - self.vmm.stats.base) // GRAIN + i for address, (n, _) in self.live.items() for i in range(n)
        }
        stay = self.held_fast()
        for start in range(COUNT * PER - grains + 1):
            block = range(start, start + grains)
            if taken.isdisjoint(block):
                whole = stay | {grain // PER for grain in block}
                if whole == stay or len(whole) * HANDLE <= self.cap:
                    return True
        return False


def take(slow: Slow, grains: int, stream: int) -> None:
    before, could = slow.vmm.stats.resident, slow.fits(grains)
    cached = slow.vmm.stats.resident > slow.cap
    address = slow.vmm.alloc(grains * GRAIN - 1, stream)
    assert slow.vmm.stats.resident <= max(slow.cap, before), "the cap was passed"
    if not address:
        assert not could, slow.vmm.why()
        return
    assert could or cached, "served above the cap"
    end = address + grains * GRAIN
    assert slow.vmm.stats.base <= address
    assert end <= slow.vmm.stats.base + COUNT * HANDLE
    assert all(end <= other or other + n * GRAIN <= address for other, (n, _) in slow.live.items()), "blocks overlap"
    slow.live[address] = (grains, stream)


def trim(slow: Slow, target: int) -> None:
    before, free = slow.driver.used(), slow.mapped() - slow.used()
    ready = {h for h in free if slow.quiet(h)}
    gone = slow.vmm.trim(target)
    assert gone == before - slow.driver.used(), "it says what it did"
    assert gone == min(len(ready), max(0, -(-(before - target) // HANDLE))) * HANDLE
    assert slow.mapped() >= slow.held_fast()
    if slow.driver.used() > target:
        assert slow.vmm.stats.pending == len(free - ready) * HANDLE


def step(slow: Slow, kind: str, one: int, two: int) -> None:
    blocks = sorted(slow.live)
    if kind == "take":
        take(slow, one, two)
    elif kind == "free" and blocks:
        address = blocks[one % len(blocks)]
        grains, stream = slow.live.pop(address)
        slow.vmm.free(address, grains * GRAIN, stream)
        for handle in slow.touched(address, grains):
            slow.last.setdefault(handle, {})[stream] = slow.driver.queued(stream)
    elif kind == "launch" and blocks:
        address = blocks[one % len(blocks)]
        grains, stream = slow.live[address]
        slow.driver.launch(stream, address, grains * GRAIN)
    elif kind == "run":
        slow.driver.run(one, two)
    elif kind == "trim":
        trim(slow, one * HANDLE)
    elif kind == "cap":
        slow.cap = one * HANDLE
        slow.vmm.set_cap(slow.cap)


@QUIET
@given(st.lists(STEP, max_size=80))
def test_any_sequence_matches_the_slow_model(steps: list[tuple[str, int, int]]) -> None:
    vmm, driver = arena(range_bytes=COUNT * HANDLE)
    slow = Slow(vmm, driver)
    for kind, one, two in steps:
        step(slow, kind, one, two)
        assert driver.violations() == ""
        assert vmm.stats.resident == driver.used() == len(slow.mapped()) * HANDLE
        assert vmm.stats.in_use == sum(grains for grains, _ in slow.live.values()) * GRAIN
        assert slow.mapped() >= slow.used()
        assert vmm.free_bytes() == len(slow.mapped() - slow.used()) * HANDLE
        assert vmm.stats.lost == 0
    for address, (grains, stream) in slow.live.items():
        vmm.free(address, grains * GRAIN, stream)
    driver.run_all()
    vmm.trim(0)
    assert driver.used() == vmm.stats.resident == 0


CALLS = ("cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess")
EVENTS = ("cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent")


@QUIET
@given(
    st.lists(STEP, max_size=60),
    st.lists(st.tuples(st.sampled_from(CALLS + EVENTS), st.integers(1, 12)), min_size=1, max_size=6),
    st.integers(4, COUNT),
)
def test_no_failure_of_the_driver_makes_memory_unsafe_or_uncounted(
    steps: list[tuple[str, int, int]], faults: list[tuple[str, int]], room: int
) -> None:
    """On a device that is full besides. Nothing is said here about what is served, only that it is right."""
    vmm, driver = arena(range_bytes=COUNT * HANDLE, capacity=room * HANDLE)
    slow = Slow(vmm, driver)
    for at, (kind, one, two) in enumerate(steps):
        for call, nth in faults[at % len(faults) : at % len(faults) + 1]:
            driver.fail(call, nth, 719)
        if kind == "take":
            address = vmm.alloc(one * GRAIN, two)
            if address:
                end = address + one * GRAIN
                assert all(end <= other or other + n * GRAIN <= address for other, (n, _) in slow.live.items())
                slow.live[address] = (one, two)
        elif kind == "trim":
            before = driver.used()
            assert vmm.trim(one * HANDLE) == before - driver.used()
        else:
            step(slow, kind, one, two)
        assert driver.violations() == ""
        assert vmm.stats.resident == driver.used()
        assert all(driver.mapped(slow.handle(h)) for h in slow.used())
        assert vmm.stats.lost <= vmm.stats.resident
