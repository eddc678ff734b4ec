/*
 * The CUDA arena: physical GPU memory in handles of some MiB, which go back to the driver one by one.
 *
 * It serves torch.cuda.MemPool through torch.cuda.memory.CUDAPluggableAllocator (lull_vmm_alloc, lull_vmm_free): the
 * blocks here are that pool's segments, multiples of 2 MiB. One range of address space is reserved; a handle is
 * created and mapped when a block first needs it, and stays mapped and cached when its blocks are free, until
 * lull_vmm_trim unmaps it.
 *
 * Last use. When a block is given back an event is recorded on the stream that it was allocated for (PyTorch gives a
 * block with other streams' uses back only after those are done). A handle is unmapped only when nothing in it is
 * allocated and every such event is complete: no stream and no device is ever waited for. A block that another stream
 * gets next waits for the event on that stream.
 *
 * The cap bounds `resident`, the bytes of all mapped handles, before they are taken. A request above it first gives
 * other free handles back, and is then refused (NULL): PyTorch holds its allocator's lock here, so waiting would stop
 * whoever could make room. What the driver fails to give back is counted as lost and never used again.
 *
 * Concurrency: one mutex; unmapping runs outside it on handles that were marked. No call goes back into PyTorch.
 */
#define _GNU_SOURCE
#define CAPPED(name) lull_vmm_##name
#define OWN_STATS pending, lost, maps, handle
#include "capped.h"
#include "vmm.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAIN ((int64_t)2 << 20)
#define WAYS 4

enum { ABSENT, THERE, LEAVING, LOST };
struct ticket { vmm_event event; vmm_stream stream; int refs, done; struct ticket *next; };
struct handle { vmm_handle driver; struct ticket *last[WAYS]; uint32_t used; uint8_t state; };

static struct vmm_driver cu;
static vmm_context context;
static int on_device = -1, forked;
static struct handle *handles;
static uint32_t *block_len; /* grains of the block that starts at this grain, else 0 */
static uint8_t *taken;      /* this grain is in a block */
static struct ticket *spare;
static size_t grains, per_handle, high; /* high: one past the highest grain that was ever taken */
static char why[512];

static void say(const char *form, ...) {
    va_list args;
    va_start(args, form);
    vsnprintf(why, sizeof why, form, args);
    va_end(args);
}

/* ---- the driver ---- */

static const char *const names[] = {
    "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate", "cuMemRelease",
    "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent",
};
_Static_assert(sizeof names / sizeof *names == sizeof cu / sizeof(void *), "a name for each function");

static int load(const char *library) {
    void *lib = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!lib) return say("no driver: %s", dlerror()), 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(lib, names[i]);
        if (!found) return say("%s has no %s: the driver is too old for virtual memory management", library, names[i]), 0;
        memcpy((char *)&cu + i * sizeof found, &found, sizeof found);
    }
    return 1;
}

static int failed(const char *call, int result) {
    if (result) say("%s: CUDA error %d%s", call, result, result == VMM_OUT_OF_MEMORY ? " (out of memory)" : "");
    return result;
}

static void enter(void) { pthread_mutex_lock(&mu); cu.context_push(context); }
static void leave(void) {
    vmm_context was;
    cu.context_pop(&was);
    pthread_mutex_unlock(&mu);
}

static struct vmm_prop properties(void) {
    struct vmm_prop p;
    memset(&p, 0, sizeof p);
    p.type = VMM_PINNED;
    p.location.type = VMM_ON_DEVICE;
    p.location.id = on_device;
    return p;
}

/* ---- last uses (mutex held) ---- */

static int complete(struct ticket *t) {
    if (!t->done) t->done = cu.event_query(t->event) == VMM_OK; /* an error is no completion */
    return t->done;
}

static void forget(struct ticket **place) {
    struct ticket *t = *place;
    *place = NULL;
    if (t && --t->refs == 0) {
        t->next = spare;
        spare = t;
    }
}

static struct ticket *record(vmm_stream stream) {
    struct ticket *t = spare;
    if (t) {
        spare = t->next;
    } else {
        t = calloc(1, sizeof *t);
        if (!t || failed("cuEventCreate", cu.event_create(&t->event, VMM_NO_TIMING))) return free(t), NULL;
    }
    t->stream = stream;
    t->refs = t->done = 0;
    if (!failed("cuEventRecord", cu.event_record(t->event, stream))) return t;
    t->next = spare;
    spare = t;
    return NULL;
}

/* Makes room for a use by `stream` among the handle's last uses: where other streams have all places, this one waits on
 * the device for one of them, so that its event stands for both. */
static int make_way(struct handle *h, vmm_stream stream) {
    for (int i = 0; i < WAYS; i++) {
        if (h->last[i] && h->last[i]->stream != stream && complete(h->last[i])) forget(&h->last[i]);
        if (!h->last[i] || h->last[i]->stream == stream) return 1;
    }
    if (failed("cuStreamWaitEvent", cu.stream_wait(stream, h->last[0]->event, 0))) return 0;
    return forget(&h->last[0]), 1;
}

/* The handle's memory was used until t; make_way came before. */
static void attach(struct handle *h, struct ticket *t) {
    int where = -1;
    for (int i = WAYS; i-- > 0;)
        if (!h->last[i]) where = i;
    for (int i = 0; i < WAYS; i++)
        if (h->last[i] && h->last[i]->stream == t->stream) where = i;
    forget(&h->last[where]);
    h->last[where] = t;
    t->refs++;
}

static int quiet(struct handle *h) {
    int all = 1;
    for (int i = 0; i < WAYS; i++) {
        if (!h->last[i]) continue;
        if (complete(h->last[i])) forget(&h->last[i]); else all = 0;
    }
    return all;
}

/* A block that `stream` gets comes after what other streams did there. */
static int order_after(struct handle *h, vmm_stream stream) {
    for (int i = 0; i < WAYS; i++) {
        struct ticket *t = h->last[i];
        if (!t || t->stream == stream || complete(t)) continue;
        if (failed("cuStreamWaitEvent", cu.stream_wait(stream, t->event, 0))) return 0;
    }
    return 1;
}

/* ---- giving handles back ---- */

/* Never unmapped and never given out again; its bytes stay counted in resident. */
static void lose(struct handle *h) {
    if (h->state == LOST) return;
    h->state = LOST;
    S.lost += S.handle;
}

static void unmap(size_t i) { /* mutex held on entry and exit, released around the driver's work */
    vmm_address at = (vmm_address)S.base + i * (vmm_address)S.handle;
    handles[i].state = LEAVING;
    pthread_mutex_unlock(&mu);
    int unmapped = cu.unmap(at, (size_t)S.handle);
    int released = unmapped ? 0 : cu.release(handles[i].driver);
    pthread_mutex_lock(&mu);
    if (failed(unmapped ? "cuMemUnmap" : "cuMemRelease", unmapped ? unmapped : released)) {
        lose(&handles[i]);
        return;
    }
    handles[i].state = ABSENT;
    S.resident -= S.handle;
    S.trims++;
    S.trimmed += S.handle;
}

static int avoids(size_t i, int64_t at, int64_t len) { /* whether handle i lies outside these grains */
    return (int64_t)((i + 1) * per_handle) <= at || (int64_t)(i * per_handle) >= at + len;
}

/* Gives up to `want` bytes of free handles back, highest first, but for those under [at, at+len) grains. Counts what
 * only waits for its event in S.pending. Returns bytes given back. */
static int64_t trim_locked(int64_t want, int64_t at, int64_t len) {
    int64_t freed = 0, pending = 0;
    for (size_t i = (high + per_handle - 1) / per_handle; i-- > 0 && freed < want;) {
        if (handles[i].state != THERE || handles[i].used || !avoids(i, at, len)) continue;
        if (!quiet(&handles[i])) { pending += S.handle; continue; }
        unmap(i);
        freed += handles[i].state == ABSENT ? S.handle : 0;
    }
    S.pending = pending;
    return freed;
}

/* ---- blocks ---- */

static int usable(size_t grain) {
    return !taken[grain] && handles[grain / per_handle].state <= THERE;
}

static int64_t absent_handles(size_t at, size_t len) {
    int64_t n = 0;
    for (size_t h = at / per_handle; h <= (at + len - 1) / per_handle; h++) n += handles[h].state == ABSENT;
    return n;
}

/* Best fit: fewest new handles first (they are what the cap is about), then the smallest gap, then the lowest. */
static int find(size_t len, size_t *where, int64_t *fresh) {
    size_t best_gap = SIZE_MAX, end = high + len + per_handle < grains ? high + len + per_handle : grains;
    int64_t best_fresh = INT64_MAX;
    for (size_t g = 0; g < end;) {
        size_t start = g;
        while (g < end && usable(g)) g++;
        size_t gap = g - start;
        size_t starts[2] = {start, g - len};
        for (int k = 0; gap >= len && k < (g < end ? 2 : 1); k++) {
            int64_t here = absent_handles(starts[k], len);
            if (here > best_fresh || (here == best_fresh && gap >= best_gap)) continue;
            best_fresh = here, best_gap = gap, *where = starts[k];
        }
        while (g < end && !usable(g)) g++;
    }
    *fresh = best_fresh;
    return best_fresh != INT64_MAX;
}

/* Creates and maps handle i. On failure nothing of it is left, or what is left is counted as lost. */
static int bring(size_t i) {
    vmm_address at = (vmm_address)S.base + i * (vmm_address)S.handle;
    struct vmm_prop prop = properties();
    struct vmm_access access = {prop.location, VMM_READ_WRITE};
    struct handle *h = &handles[i];
    int result = failed("cuMemCreate", cu.create(&h->driver, (size_t)S.handle, &prop, 0));
    if (result) return result;
    int mapped = 0;
    if (!(result = failed("cuMemMap", cu.map(at, (size_t)S.handle, 0, h->driver, 0)))) {
        mapped = 1;
        result = failed("cuMemSetAccess", cu.set_access(at, (size_t)S.handle, &access, 1));
    }
    S.resident += S.handle;
    if (S.resident > S.peak_resident) S.peak_resident = S.resident;
    if (!result) {
        h->state = THERE;
        S.maps++;
        return 0;
    }
    if ((mapped && cu.unmap(at, (size_t)S.handle)) || cu.release(h->driver)) {
        lose(h);
    } else {
        S.resident -= S.handle;
    }
    return result;
}

/* Brings what is absent under [at, at+len). Where that fails, what came stays, mapped and free. */
static int bring_all(size_t at, size_t len) {
    size_t first = at / per_handle, last = (at + len - 1) / per_handle;
    for (size_t h = first; h <= last; h++) {
        int result = handles[h].state == ABSENT ? bring(h) : 0;
        if (result) return result;
    }
    return 0;
}

static void *settle(size_t at, size_t len) {
    for (size_t g = at; g < at + len; g++) {
        taken[g] = 1;
        handles[g / per_handle].used++;
    }
    block_len[at] = (uint32_t)len;
    S.in_use += (int64_t)len * GRAIN;
    S.blocks++;
    if (S.in_use > S.peak_in_use) S.peak_in_use = S.in_use;
    return (void *)(uintptr_t)(S.base + (int64_t)at * GRAIN);
}

static void *refuse(int64_t missing) {
    S.failures++;
    press(missing);
    return NULL;
}

static void *alloc_locked(int64_t bytes, vmm_stream stream) {
    size_t len = (size_t)((bytes + GRAIN - 1) / GRAIN), at = 0;
    int64_t fresh = 0;
    for (int retried = 0;;) {
        if (!find(len, &at, &fresh)) return say("lull_vmm_alloc: no address space for %lld bytes", (long long)bytes), refuse(bytes);
        int64_t missing = S.resident + fresh * S.handle - S.cap;
        if (fresh && missing > 0) {
            /* What lies under the block itself goes last: it would come back. The mutex was away, so look again. */
            if (trim_locked(missing, (int64_t)at, (int64_t)len) || trim_locked(missing, 0, 0)) continue;
            say("lull_vmm_alloc: %lld bytes need %lld more in handles of %lld, which is %lld above the cap of %lld, with "
                "%lld resident; nothing was taken", (long long)bytes, (long long)(fresh * S.handle), (long long)S.handle,
                (long long)missing, (long long)S.cap, (long long)S.resident);
            return refuse(missing);
        }
        int result = 0;
        if (high < at + len) high = at + len; /* trims look below it, also where not all of this comes */
        if (fresh && (result = bring_all(at, len))) {
            if (result == VMM_OUT_OF_MEMORY && !retried++ && trim_locked(fresh * S.handle, (int64_t)at, (int64_t)len)) continue;
            return refuse(fresh * S.handle);
        }
        for (size_t h = at / per_handle; h <= (at + len - 1) / per_handle; h++)
            if (!order_after(&handles[h], stream)) return refuse(bytes);
        return settle(at, len);
    }
}

/* ---- for torch.cuda.memory.CUDAPluggableAllocator ---- */

EXPORT void *lull_vmm_alloc(ptrdiff_t bytes, int device, vmm_stream stream) {
    if (bytes <= 0 || device != on_device || forked || !handles) return NULL;
    enter();
    void *p = bytes > S.range ? refuse(bytes) : alloc_locked(bytes, stream);
    leave();
    return p;
}

EXPORT void lull_vmm_free(void *p, ptrdiff_t bytes, int device, vmm_stream stream) {
    (void)bytes, (void)device;
    if (!p || forked) return;
    enter();
    int64_t offset = (int64_t)(uintptr_t)p - S.base;
    size_t at = (size_t)(offset / GRAIN);
    if (offset < 0 || offset >= S.range || offset % GRAIN || !block_len[at]) abort(); /* a double or foreign free */
    size_t len = block_len[at];
    block_len[at] = 0;
    size_t first = at / per_handle, last = (at + len - 1) / per_handle;
    uint8_t way = 1;
    for (size_t h = first; h <= last && way; h++) way = (uint8_t)make_way(&handles[h], stream);
    struct ticket *t = way ? record(stream) : NULL;
    if (t) t->refs++;
    for (size_t g = at; g < at + len; g++) {
        taken[g] = 0;
        handles[g / per_handle].used--;
    }
    for (size_t h = first; h <= last; h++) {
        if (t) attach(&handles[h], t);
        else lose(&handles[h]); /* when it was last used is not known */
    }
    if (t) forget(&t);
    S.in_use -= (int64_t)len * GRAIN;
    S.blocks--;
    leave();
}

/* ---- the interface for Python ---- */

static void in_child(void) { forked = 1; pthread_mutex_init(&mu, NULL); }

static int begin(int ordinal, int64_t range, int64_t handle) {
    int device = 0, supported = 0;
    size_t least = 0;
    vmm_address base = 0;
    if (failed("cuInit", cu.init(0)) || failed("cuDeviceGet", cu.device_get(&device, ordinal)) ||
        failed("cuDeviceGetAttribute", cu.device_attribute(&supported, VMM_SUPPORTED, device))) return -1;
    if (!supported) return say("device %d does not support virtual memory management", ordinal), -1;
    on_device = ordinal;
    struct vmm_prop prop = properties();
    if (failed("cuDevicePrimaryCtxRetain", cu.context_retain(&context, device)) ||
        failed("cuMemGetAllocationGranularity", cu.granularity(&least, &prop, 0))) return -1;
    if (handle < GRAIN || handle % GRAIN || !least || handle % (int64_t)least)
        return say("handles of %lld bytes: want a multiple of %lld and of the device's %zu", (long long)handle, (long long)GRAIN, least), -1;
    size_t n = (size_t)(range / handle);
    if (n < 1) return say("a range of %lld bytes: want at least a handle of %lld", (long long)range, (long long)handle), -1;
    if (failed("cuMemAddressReserve", cu.reserve(&base, n * (size_t)handle, (size_t)handle, 0, 0))) return -1;
    per_handle = (size_t)(handle / GRAIN);
    grains = n * per_handle;
    struct handle *made = calloc(n, sizeof *made);
    block_len = calloc(grains, sizeof *block_len);
    taken = calloc(grains, 1);
    if (!made || !block_len || !taken) return say("no memory for the tables of %zu handles", n), -1;
    S.cap = INT64_MAX / 2;
    S.base = (int64_t)base;
    S.range = (int64_t)n * handle;
    S.handle = handle;
    init_cond(&pressed);
    pthread_atfork(NULL, NULL, in_child);
    handles = made;
    return 0;
}

/* Reserves `range` bytes of addresses on a device, in handles of `handle` bytes. The driver's functions come from
 * `table`, or from libcuda.so.1 where that is NULL. Once a process. Returns 0, or -1 with the reason in lull_vmm_why. */
EXPORT int lull_vmm_open(int ordinal, int64_t range, int64_t handle, const struct vmm_driver *table) {
    if (handles) return say("the arena is open already, on device %d", on_device), -1;
    if (table) cu = *table;
    else if (!load("libcuda.so.1")) return -1;
    return begin(ordinal, range, handle);
}

/* From now on resident does not pass `bytes`. What is above already stays until it is trimmed. */
EXPORT void lull_vmm_set_cap(int64_t bytes) {
    pthread_mutex_lock(&mu);
    S.cap = bytes;
    pthread_mutex_unlock(&mu);
}

/* Gives free handles with complete events back until resident <= target; never waits for the device. What would go but
 * for an event is left in `pending`. Returns the bytes given back. */
EXPORT int64_t lull_vmm_trim(int64_t target) {
    if (!handles || forked) return 0;
    enter();
    int64_t want = S.resident - target, freed = want > 0 ? trim_locked(want, 0, 0) : (S.pending = 0);
    leave();
    return freed;
}

/* Bytes of free handles, whether their events are complete or not: what trims can give back, now or soon. */
EXPORT int64_t lull_vmm_free_bytes(void) {
    int64_t n = 0;
    pthread_mutex_lock(&mu);
    for (size_t i = 0; handles && i < (high + per_handle - 1) / per_handle; i++)
        n += handles[i].state == THERE && !handles[i].used;
    pthread_mutex_unlock(&mu);
    return n * S.handle;
}

/* Copies the last reason for a refusal or a loss into `into`, at most `room` bytes with the closing zero. */
EXPORT void lull_vmm_why(char *into, int64_t room) {
    pthread_mutex_lock(&mu);
    snprintf(into, (size_t)room, "%s", why);
    pthread_mutex_unlock(&mu);
}
