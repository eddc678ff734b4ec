/*
 * What vmm.c needs of the CUDA driver, as a table of functions: libcuda's own, or a test's.
 *
 * The types are those of cuda.h (driver API of CUDA 11.2 and later), written down here so that no CUDA toolkit
 * is needed to build. trainer/python/tests/native/test_vmm_header.py compares them with cuda.h where there is one.
 */
#ifndef LULL_VMM_H
#define LULL_VMM_H
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long vmm_address; /* CUdeviceptr */
typedef unsigned long long vmm_handle;  /* CUmemGenericAllocationHandle */
typedef void *vmm_stream;               /* CUstream */
typedef void *vmm_event;                /* CUevent */
typedef void *vmm_context;              /* CUcontext */

struct vmm_location { int type, id; };     /* CUmemLocation */
struct vmm_prop {                          /* CUmemAllocationProp */
    int type, requested_handle_types;
    struct vmm_location location;
    void *win32_meta;
    struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
};
struct vmm_access { struct vmm_location location; int flags; }; /* CUmemAccessDesc */

enum {
    VMM_OK = 0, VMM_OUT_OF_MEMORY = 2, VMM_NOT_READY = 600, /* CUresult */
    VMM_PINNED = 1,      /* CU_MEM_ALLOCATION_TYPE_PINNED */
    VMM_ON_DEVICE = 1,   /* CU_MEM_LOCATION_TYPE_DEVICE */
    VMM_READ_WRITE = 3,  /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
    VMM_NO_TIMING = 2,   /* CU_EVENT_DISABLE_TIMING */
    VMM_SUPPORTED = 102, /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
};

/* Each returns a CUresult, 0 for success. The order is that of `names` in vmm.c. */
struct vmm_driver {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*context_retain)(vmm_context *context, int device);
    int (*context_push)(vmm_context context);
    int (*context_pop)(vmm_context *context);
    int (*granularity)(size_t *bytes, const struct vmm_prop *prop, int option);
    int (*reserve)(vmm_address *at, size_t bytes, size_t align, vmm_address hint, unsigned long long flags);
    int (*create)(vmm_handle *handle, size_t bytes, const struct vmm_prop *prop, unsigned long long flags);
    int (*release)(vmm_handle handle);
    int (*map)(vmm_address at, size_t bytes, size_t offset, vmm_handle handle, unsigned long long flags);
    int (*unmap)(vmm_address at, size_t bytes);
    int (*set_access)(vmm_address at, size_t bytes, const struct vmm_access *access, size_t count);
    int (*event_create)(vmm_event *event, unsigned flags);
    int (*event_record)(vmm_event event, vmm_stream stream);
    int (*event_query)(vmm_event event);
    int (*stream_wait)(vmm_stream stream, vmm_event event, unsigned flags);
};
#endif
