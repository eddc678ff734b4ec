"""What the runtime needs from a device: its bytes, its random state and memory that can be given back.

cpu.py and cuda.py implement it; nothing else in lull asks which device it is on.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Pool(Protocol):
    """The memory that activations come from while it is enabled. Every method is safe on any thread."""

    name: str
    """Where its memory comes from, for people."""

    capped: bool
    """Whether the pool itself keeps resident under its cap; if not, only pack does."""

    waits: bool
    """Whether an allocation above the cap waits for room; if not it fails, and pack keeps more room free."""

    unit: int
    """Bytes in which it takes memory and gives it back."""

    def resident(self) -> int:
        """Bytes that the device shows for this pool, cached ones included."""

    def in_use(self) -> int:
        """Bytes in live tensors."""

    def above(self, limit: int) -> bool:
        """Whether in_use is above a limit; cheaper where in_use is not cheap."""

    def coming(self) -> int:
        """Bytes of resident that nothing holds any more and trim cannot give back yet: they go once the training
        thread comes to a safe point, or what is queued on the device is done."""

    def peak(self) -> int:
        """The highest in_use since reset_peak."""

    def peak_resident(self) -> int:
        """The highest resident since reset_peak."""

    def reset_peak(self) -> None:
        """Starts both peaks again from what holds now."""

    def waiters(self) -> int:
        """Threads that wait for memory inside an allocation."""

    def enable(self, on: bool) -> bool:
        """Sends this process's large allocations to the pool, or not; returns what held before."""

    def set_cap(self, cap: int) -> None:
        """The ceiling for resident, in bytes."""

    def policy(self, wait_us: int, overdraft: bool) -> None:
        """What an allocation above the cap does: wait so long, then overdraft or fail."""

    def fail(self, on: bool) -> None:
        """While on, allocations above the cap fail at once."""

    def trim(self, target: int) -> int:
        """Gives cached memory back until resident <= target; returns bytes given back."""

    def wait_short(self, timeout_us: int) -> int:
        """Blocks until an allocation misses bytes (returned), a wake (1) or the timeout (0)."""

    def wake(self) -> None:
        """Ends a wait_short early."""

    def counters(self) -> dict[str, int]:
        """For reports and tests: waits, overdrafts and the like."""


class Device(Protocol):
    """One device of this process."""

    kind: str
    """torch's device type."""

    label: str
    """The device's name on the wire, such as cpu or cuda:0."""

    pool: Pool

    def bytes(self) -> int:
        """Bytes of this process on the device, by the device's own books."""

    def total(self) -> int:
        """Bytes of memory that the device has."""

    def start_peak(self) -> None:
        """Starts measuring the highest bytes()."""

    def peak_bytes(self) -> int:
        """The highest bytes() since start_peak."""

    def own_bytes(self, tensors: list[torch.Tensor]) -> int:
        """Bytes of these tensors that lie on this device, each storage once."""

    def settle(self, floor_end: int) -> None:
        """Where the floor ends, in bytes(): what is above it is the pool's, if the pool cannot tell itself. Asked again
        whenever the floor rises; any thread."""

    def give_back_cache(self) -> None:
        """Gives back what is cached outside the pool, where that counts in bytes(). May wait for the device."""

    def boundary(self) -> None:
        """A block begins, forward or backward: bounds how far Python runs ahead of the device."""

    def capturing(self) -> bool:
        """Whether what runs now is recorded, to be replayed at the same addresses."""

    def rng(self) -> tuple[torch.Tensor, ...]:
        """The state of every default generator that a model on this device draws from."""

    def set_rng(self, state: tuple[torch.Tensor, ...]) -> None:
        """Puts a state back."""


def storage_bytes(tensors: list[torch.Tensor], kind: str) -> int:
    """Bytes of the distinct storages behind tensors on devices of this kind."""
    seen: dict[int, int] = {}
    for tensor in tensors:
        if tensor.device.type == kind and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())
