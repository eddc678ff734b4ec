"""The arena of csrc/vmm.c on a driver that only keeps books, each time a fresh one of both."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lull._build import VMM, library
from lull._vmm import Vmm

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
GRAIN = 2 * MIB
NAMES = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
]
_copies = itertools.count()


def compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="lull-vmm-"))


@functools.cache
def fake_library() -> str:
    found = compiler()
    assert found is not None
    target = _folder() / "fake.so"
    command = [found, "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    subprocess.run([*command, "-o", str(target), str(HERE / "fake_driver.c")], check=True)
    return str(target)


def _fresh(path: str) -> str:
    """A copy, which the loader takes for another library: its state is its own."""
    return shutil.copy(path, _folder() / f"{next(_copies)}-{Path(path).name}")


class Driver:
    """The fake driver: memory, streams 1 to 15 and faults as a test says."""

    def __init__(self, capacity: int) -> None:
        self.lib = ctypes.CDLL(_fresh(fake_library()))
        self.lib.fake_table.restype = ctypes.c_void_p
        self.lib.fake_used.restype = ctypes.c_size_t
        self.lib.fake_capacity.argtypes = [ctypes.c_size_t]
        self.lib.fake_launch.argtypes = [ctypes.c_size_t, ctypes.c_ulonglong, ctypes.c_size_t]
        self.lib.fake_run.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self.lib.fake_mapped.argtypes = [ctypes.c_ulonglong]
        for name in ("queued", "ran"):
            function = getattr(self.lib, f"fake_{name}")
            function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_long
        self.lib.fake_violations.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.set_capacity(capacity)

    def set_capacity(self, capacity: int) -> None:
        self.lib.fake_capacity(capacity)

    def used(self) -> int:
        return int(self.lib.fake_used())

    def launch(self, stream: int, address: int, size: int) -> None:
        self.lib.fake_launch(stream, address, size)

    def run(self, stream: int, count: int = 1 << 30) -> int:
        return int(self.lib.fake_run(stream, count))

    def run_all(self) -> None:
        while sum(self.run(stream) for stream in range(16)):
            pass

    def fail(self, call: str, nth: int = 1, code: int = 1) -> None:
        self.lib.fake_fail(NAMES.index(call), nth, code)

    def calls(self, call: str) -> int:
        return int(self.lib.fake_calls(NAMES.index(call)))

    def queued(self, stream: int) -> int:
        return int(self.lib.fake_queued(stream))

    def ran(self, stream: int) -> int:
        return int(self.lib.fake_ran(stream))

    def mapped(self, address: int) -> bool:
        return bool(self.lib.fake_mapped(address))

    def violations(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.lib.fake_violations(text, 256)
        return text.value.decode()


def arena(
    *, capacity: int = 1 << 40, handle: int = 8 * MIB, range_bytes: int = 1 << 30, path: str | None = None
) -> tuple[Vmm, Driver]:
    built = path or library(VMM, os.environ)
    assert built is not None
    driver = Driver(capacity)
    made = Vmm(_fresh(built), device=0, range_bytes=range_bytes, handle_bytes=handle, driver=driver.lib.fake_table())
    return made, driver
