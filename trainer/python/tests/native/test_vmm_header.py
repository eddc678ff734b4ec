"""csrc/vmm.h writes the driver's types down by itself: compared with cuda.h where an installed package has it."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
from vmm_rig import HERE, compiler

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(compiler() is None, reason="no C compiler")]

HEADERS = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/include/cuda.h"))
SAME = """
#include <cuda.h>
#include <stddef.h>
#include "vmm.h"
#define SIZE(a, b) _Static_assert(sizeof(a) == sizeof(b), #b)
#define PLACE(a, f, b, g) _Static_assert(offsetof(a, f) == offsetof(b, g), #g)
SIZE(struct vmm_prop, CUmemAllocationProp);
SIZE(struct vmm_access, CUmemAccessDesc);
SIZE(vmm_address, CUdeviceptr);
SIZE(vmm_handle, CUmemGenericAllocationHandle);
PLACE(struct vmm_prop, type, CUmemAllocationProp, type);
PLACE(struct vmm_prop, location, CUmemAllocationProp, location);
PLACE(struct vmm_prop, flags, CUmemAllocationProp, allocFlags);
PLACE(struct vmm_access, flags, CUmemAccessDesc, flags);
_Static_assert(VMM_OK == CUDA_SUCCESS && VMM_OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY, "results");
_Static_assert(VMM_NOT_READY == CUDA_ERROR_NOT_READY && VMM_NO_TIMING == CU_EVENT_DISABLE_TIMING, "events");
_Static_assert(VMM_PINNED == CU_MEM_ALLOCATION_TYPE_PINNED && VMM_ON_DEVICE == CU_MEM_LOCATION_TYPE_DEVICE, "places");
_Static_assert(VMM_READ_WRITE == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access");
_Static_assert(VMM_SUPPORTED == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "attribute");
typedef unsigned long long flags;
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, flags) = cuMemCreate;
static CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, flags) = cuMemMap;
static CUresult (*unmap)(CUdeviceptr, size_t) = cuMemUnmap;
static CUresult (*give_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) = cuMemSetAccess;
static CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) = cuMemAddressReserve;
static CUresult (*wait)(CUstream, CUevent, unsigned) = cuStreamWaitEvent;
void *all[] = {&create, &map, &unmap, &give_access, &reserve, &wait};
"""


@pytest.mark.skipif(not HEADERS, reason="no package with cuda.h is installed")
def test_the_types_are_those_of_the_driver(tmp_path: Path) -> None:
    source = tmp_path / "same.c"
    source.write_text(SAME)
    cc = compiler()
    assert cc is not None
    includes = [f"-I{HEADERS[0].parent}", f"-I{HERE.parent.parent / 'csrc'}"]
    done = subprocess.run(
        [cc, "-Wall", "-Werror", "-Wno-enum-compare", *includes, "-c", str(source), "-o", str(tmp_path / "same.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
