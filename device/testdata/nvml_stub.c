/* A libnvidia-ml.so.1 of one GPU, as an old driver has it: no MIG, no remapped rows, no MPS, and so no such functions. The process that
 * loads it is the only one on the GPU, and gets one XID. Layouts and names are those of nvml.h. */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct { uint64_t total, free, used; } memory;
typedef struct { uint32_t pid; uint64_t used; uint32_t instance, compute; } process;
typedef struct { void *device; uint64_t type, data; uint32_t instance, compute; } event;

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
static int card, set, told;

static int text(char *to, unsigned n, const char *from) { strncpy(to, from, n); return SUCCESS; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == TIMEOUT ? "Timeout" : "some error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned n) { return text(to, n, "418.1"); }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = &card; return i == 0 ? SUCCESS : INVALID_ARGUMENT; }
int nvmlDeviceGetHandleByUUID(const char *id, void **d) { *d = &card; return strcmp(id, "GPU-stub") == 0 ? SUCCESS : NOT_FOUND; }
int nvmlDeviceGetUUID(void *d, char *to, unsigned n) { return text(to, n, "GPU-stub"); }
int nvmlDeviceGetName(void *d, char *to, unsigned n) { return text(to, n, "Tesla Stub"); }
int nvmlDeviceGetComputeMode(void *d, int *mode) { *mode = 3; return SUCCESS; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { *m = (memory){16ull << 30, 12ull << 30, 4ull << 30}; return SUCCESS; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *p) {
	if (*n < 2) { *n = 2; return INSUFFICIENT_SIZE; }
	*n = 2;
	p[0] = (process){(uint32_t)getpid(), 3ull << 30, ~0u, ~0u};
	p[1] = (process){1, ~0ull, ~0u, ~0u};
	return SUCCESS;
}
int nvmlDeviceGetSupportedEventTypes(void *d, uint64_t *types) { *types = 8; return SUCCESS; }
int nvmlEventSetCreate(void **s) { *s = &set; return SUCCESS; }
int nvmlDeviceRegisterEvents(void *d, uint64_t types, void *s) { return types == 8 ? SUCCESS : INVALID_ARGUMENT; }
int nvmlEventSetFree(void *s) { return SUCCESS; }
int nvmlEventSetWait_v2(void *s, event *e, unsigned ms) {
	if (told) { usleep(ms * 1000); return TIMEOUT; }
	told = 1;
	*e = (event){&card, 8, 79, ~0u, ~0u};
	return SUCCESS;
}
