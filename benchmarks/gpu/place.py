"""The device that is measured: a GPU, or for a rehearsal this machine's memory under the same names.

free_bytes is what the device itself shows: NVML's figure for a GPU (libnvidia-ml through ctypes, by the UUID that
PyTorch knows), else the driver's through torch.cuda.mem_get_info; for a rehearsal what this process does not hold of a
fixed total.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch

MIB = 1 << 20
_cuda: Any = torch.cuda


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
    free: int


class Nvml:
    """One GPU's memory as the driver's management library shows it."""

    def __init__(self, uuid: str) -> None:
        """Raises OSError where there is no library, or it does not know the GPU."""
        self._lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        for call, args in (
            ("nvmlInit_v2", ()),
            ("nvmlDeviceGetHandleByUUID", (uuid.encode(), ctypes.byref(self._device))),
        ):
            if result := getattr(self._lib, call)(*args):
                raise OSError(f"{call}: NVML error {result}")

    def free(self) -> int:
        """Bytes that are free on the device."""
        memory = _Memory()
        if result := self._lib.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)):
            raise OSError(f"nvmlDeviceGetMemoryInfo: NVML error {result}")
        return memory.free


class Gpu:
    """The current CUDA device."""

    kind = "cuda"
    unit = 1 << 30
    """What a phase's gigabyte is: smaller in a rehearsal."""

    def __init__(self) -> None:
        _cuda.init()
        properties: Any = torch.cuda.get_device_properties(0)
        self.name = str(properties.name)
        self.total = int(properties.total_memory)
        self.source = "NVML"
        self._nvml: Nvml | None = None
        try:
            self._nvml = Nvml(f"GPU-{properties.uuid}")
        except (OSError, AttributeError) as error:
            self.source = f"torch.cuda.mem_get_info, since {error}"

    def free_bytes(self) -> int:
        return self._nvml.free() if self._nvml is not None else int(torch.cuda.mem_get_info(0)[0])

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def busy(self, seconds: float) -> None:
        """Queues work for about so long and returns at once."""
        _cuda._sleep(int(seconds * 1.5e9))


class Rehearsal:
    """This machine's memory in place of a GPU's."""

    kind = "cpu"
    name = "rehearsal on the CPU"
    unit = 16 * MIB
    total = 4 << 30
    source = "RssAnon + RssShmem of this process"

    def free_bytes(self) -> int:
        from lull._torch.cpu import own_memory

        return self.total - own_memory()

    def synchronize(self) -> None:
        """Operators have run when they return."""

    def busy(self, seconds: float) -> None:
        """There is no queue."""


def place_of(rehearse: bool) -> Gpu | Rehearsal:
    """A GPU unless this is a rehearsal."""
    return Rehearsal() if rehearse else Gpu()


def until_free(place: Gpu | Rehearsal, bytes: int, within_s: float) -> float:
    """Seconds until the device shows so many bytes free, or inf."""
    began = time.perf_counter()
    while place.free_bytes() < bytes:
        if time.perf_counter() - began > within_s:
            return float("inf")
        time.sleep(0.0001)
    return time.perf_counter() - began
