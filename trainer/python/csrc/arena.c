/*
 * The native arena: large blocks of activation memory that go back to the kernel in microseconds.
 *
 * Loaded with LD_PRELOAD it interposes posix_memalign, aligned_alloc, memalign, realloc, free and
 * malloc_usable_size. While the arena is enabled, requests of at least `threshold` bytes that PyTorch's CPU
 * allocator (libc10) makes are served from one reserved range of address space, backed by 2 MiB huge pages
 * ("units"); everything else goes to libc: oneDNN keeps its kernels and scratchpads for ever, and does not
 * check for NULL.
 * It is a caching allocator: a freed block stays resident until lull_arena_trim gives whole free units
 * back with MADV_DONTNEED. `resident` counts units, so it is never below what the kernel shows.
 *
 * A cap bounds `resident`. A request that would pass it first gives cached units back, then waits for
 * memory (the steward thread is told how much is missing), then fails with ENOMEM or, if the caller chose
 * so, is served all the same and counted as an overdraft.
 *
 * Concurrency: one mutex around short, allocation-free sections; madvise runs outside it on ranges that
 * were taken off the free list. Fork-safe: the child keeps its blocks and its arena is disabled.
 * It never calls into Python; it only asks whether the interpreter lock is held, before it waits.
 */
#define _GNU_SOURCE
#define CAPPED(name) lull_arena_##name
#define OWN_STATS waits, wait_us, overdrafts, waiters
#include "capped.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNIT_SHIFT 21
#define UNIT ((size_t)1 << UNIT_SHIFT)
#define GRAIN_SHIFT 14
#define GRAIN ((size_t)1 << GRAIN_SHIFT)
#define PER_UNIT (UNIT / GRAIN)
#define MAX_EXTENTS 65536

struct extent { uint32_t at, len; }; /* in grains */

static char *base;
static size_t units;
static uint32_t *block_len;   /* grains of the block that starts at this grain, else 0 */
static uint16_t *unit_used;   /* used grains of this unit */
static uint8_t *unit_there;   /* 1: counted in resident */
static struct extent *ext;    /* free extents by address */
static size_t n_ext;
static size_t high_unit;      /* one past the highest unit that was ever resident */

static pthread_cond_t changed; /* memory may have come, or the rules for it */
static int enabled, failing, overdraft, serve_all;
static size_t threshold = 32768;
static int64_t max_wait_us = 0;

static void (*real_free)(void *);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_memalign)(size_t, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static size_t (*real_usable)(void *);
static int (*gil_held)(void);
static void resolve(void) {
    real_posix_memalign = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    real_memalign = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "memalign");
    real_aligned_alloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    real_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    real_usable = (size_t(*)(void *))dlsym(RTLD_NEXT, "malloc_usable_size");
    real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

static inline int ours(const void *p) { return base && (size_t)((const char *)p - base) < units << UNIT_SHIFT; }

/* ---- free extents (mutex held) ---- */

static size_t first_not_below(uint32_t at) {
    size_t lo = 0, hi = n_ext;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (ext[mid].at < at) lo = mid + 1; else hi = mid;
    }
    return lo;
}

/* Returns 0 when the table is full; the range is then lost to the arena, never given out twice. */
static int put_free(uint32_t at, uint32_t len) {
    size_t i = first_not_below(at);
    int left = i > 0 && ext[i - 1].at + ext[i - 1].len == at;
    int right = i < n_ext && at + len == ext[i].at;
    if (left && right) {
        ext[i - 1].len += len + ext[i].len;
        memmove(ext + i, ext + i + 1, (--n_ext - i) * sizeof *ext);
    } else if (left) {
        ext[i - 1].len += len;
    } else if (right) {
        ext[i].at = at;
        ext[i].len += len;
    } else {
        if (n_ext == MAX_EXTENTS) return 0;
        memmove(ext + i + 1, ext + i, (n_ext++ - i) * sizeof *ext);
        ext[i] = (struct extent){at, len};
    }
    return 1;
}

/* Takes [at, at+len) out of extent i, which holds it. Returns 0 when that needs an entry too many. */
static int take_free(size_t i, uint32_t at, uint32_t len) {
    uint32_t before = at - ext[i].at, after = ext[i].len - before - len;
    if (before && after) {
        if (n_ext == MAX_EXTENTS) return 0;
        memmove(ext + i + 1, ext + i, (n_ext++ - i) * sizeof *ext);
        ext[i].len = before;
        ext[i + 1] = (struct extent){at + len, after};
    } else if (before) {
        ext[i].len = before;
    } else if (after) {
        ext[i] = (struct extent){at + len, after};
    } else {
        memmove(ext + i, ext + i + 1, (--n_ext - i) * sizeof *ext);
    }
    return 1;
}

static uint32_t absent_units(uint32_t at, uint32_t len) {
    uint32_t n = 0;
    for (size_t u = at / PER_UNIT; u <= (at + len - 1) / PER_UNIT; u++) n += !unit_there[u];
    return n;
}

/* Best fit: fewest new units first (they are what the cap is about), then the smallest extent, then the lowest. */
static int find(uint32_t len, size_t *where, uint32_t *at, uint32_t *fresh) {
    uint32_t best_new = UINT32_MAX, best_len = UINT32_MAX;
    for (size_t i = 0; i < n_ext; i++) {
        if (ext[i].len < len || (best_new == 0 && ext[i].len >= best_len)) continue;
        uint32_t starts[2] = {ext[i].at, ext[i].at + ext[i].len - len};
        for (int k = 0; k < (i + 1 < n_ext ? 2 : 1); k++) {
            uint32_t fresh_here = absent_units(starts[k], len);
            if (fresh_here > best_new || (fresh_here == best_new && ext[i].len >= best_len)) continue;
            best_new = fresh_here;
            best_len = ext[i].len;
            *where = i;
            *at = starts[k];
        }
    }
    *fresh = best_new;
    return best_new != UINT32_MAX;
}

static void count_units(uint32_t at, uint32_t len, int sign) {
    uint32_t end = at + len;
    while (at < end) {
        size_t u = at / PER_UNIT;
        uint32_t stop = (u + 1) * PER_UNIT < end ? (u + 1) * PER_UNIT : end;
        unit_used[u] += sign * (int)(stop - at);
        at = stop;
    }
}

/* ---- giving units back ---- */

/* Finds a run of resident, wholly free units: the shortest with at least `want`, else the longest there is. */
static size_t find_run(size_t want, size_t *run_at) {
    size_t best = 0;
    for (size_t i = 0; i < n_ext; i++) {
        size_t u = (ext[i].at + PER_UNIT - 1) / PER_UNIT, end = (ext[i].at + ext[i].len) / PER_UNIT;
        if (end > high_unit) end = high_unit;
        for (; u < end; u++) {
            if (!unit_there[u]) continue;
            size_t start = u;
            while (u < end && unit_there[u]) u++;
            size_t run = u - start;
            int better = best < want ? run > best : run >= want && run < best;
            if (better) { best = run; *run_at = start; }
        }
    }
    return best;
}

/* Mutex held on entry and exit, released around madvise. Returns bytes given back. */
static size_t trim_locked(size_t want_bytes) {
    size_t freed = 0, at = 0;
    while (freed < want_bytes) {
        size_t want = (want_bytes - freed + UNIT - 1) >> UNIT_SHIFT;
        size_t run = find_run(want, &at);
        if (!run) break;
        if (run > want) { at += run - want; run = want; }
        size_t i = first_not_below(at * PER_UNIT + 1) - 1;
        if (!take_free(i, at * PER_UNIT, run * PER_UNIT)) break;
        pthread_mutex_unlock(&mu);
        madvise(base + (at << UNIT_SHIFT), run << UNIT_SHIFT, MADV_DONTNEED);
        pthread_mutex_lock(&mu);
        memset(unit_there + at, 0, run);
        S.resident -= run << UNIT_SHIFT;
        S.trims++;
        S.trimmed += run << UNIT_SHIFT;
        freed += run << UNIT_SHIFT;
        put_free(at * PER_UNIT, run * PER_UNIT);
    }
    if (freed && S.waiters) pthread_cond_broadcast(&changed);
    return freed;
}

/* ---- blocks ---- */

static void *settle(uint32_t at, uint32_t len) {
    for (size_t u = at / PER_UNIT; u <= (at + len - 1) / PER_UNIT; u++) {
        if (unit_there[u]) continue;
        unit_there[u] = 1;
        S.resident += UNIT;
        if (u >= high_unit) high_unit = u + 1;
    }
    block_len[at] = len;
    count_units(at, len, 1);
    S.in_use += (int64_t)len << GRAIN_SHIFT;
    S.blocks++;
    if (S.in_use > S.peak_in_use) S.peak_in_use = S.in_use;
    if (S.resident > S.peak_resident) S.peak_resident = S.resident;
    return base + ((size_t)at << GRAIN_SHIFT);
}

/* Waits until memory may have come. Returns 0 when the request must be decided without it. */
static int wait_for_room(int64_t missing, int64_t *deadline) {
    if (failing || max_wait_us == 0) return 0;
    int64_t start = now_us();
    if (!*deadline) {
        if (gil_held && gil_held()) return 0; /* nobody could make room */
        *deadline = start + max_wait_us;
        S.waits++;
    }
    if (start >= *deadline) return 0;
    S.waiters++;
    press(missing);
    wait_until(&changed, *deadline);
    if (--S.waiters == 0) S.short_bytes = 0;
    S.wait_us += now_us() - start;
    return 1;
}

/* NULL: the arena cannot serve it; *refused says that libc must not either, since the cap forbids it. */
static void *arena_alloc(size_t bytes, int *refused) {
    uint32_t len = (bytes + GRAIN - 1) >> GRAIN_SHIFT, at = 0, fresh = 0;
    size_t i = 0;
    int64_t deadline = 0;
    void *p = NULL;
    pthread_mutex_lock(&mu);
    while (find(len, &i, &at, &fresh)) {
        int64_t missing = S.resident + ((int64_t)fresh << UNIT_SHIFT) - S.cap;
        int over = 0;
        if (fresh && missing > 0) {
            if (!take_free(i, at, len)) break;
            size_t freed = trim_locked(missing);
            put_free(at, len);
            if (freed) continue;
            if (wait_for_room(missing, &deadline)) continue;
            if (!overdraft || failing) {
                S.failures++;
                *refused = 1;
                break;
            }
            over = 1;
        }
        if (!take_free(i = first_not_below(at + 1) - 1, at, len)) break;
        S.overdrafts += over;
        p = settle(at, len);
        break;
    }
    pthread_mutex_unlock(&mu);
    return p;
}

static void arena_free(void *p) {
    uint32_t at = (size_t)((char *)p - base) >> GRAIN_SHIFT;
    pthread_mutex_lock(&mu);
    uint32_t len = block_len[at];
    if (!len || ((size_t)((char *)p - base) & (GRAIN - 1))) abort(); /* a double or foreign free */
    block_len[at] = 0;
    count_units(at, len, -1);
    S.in_use -= (int64_t)len << GRAIN_SHIFT;
    S.blocks--;
    put_free(at, len);
    if (S.waiters) pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mu);
}

/* Whether the code at this return address is PyTorch's CPU allocator; it has one such call. */
static int is_torch(const void *caller) {
    static const void *torch_caller;
    Dl_info where;
    if (serve_all || caller == torch_caller) return 1;
    if (!dladdr(caller, &where) || !where.dli_fname || !strstr(where.dli_fname, "libc10")) return 0;
    torch_caller = caller;
    return 1;
}

static int wanted(size_t align, size_t bytes, const void *caller) {
    return __atomic_load_n(&enabled, __ATOMIC_RELAXED) && bytes >= threshold && align <= GRAIN &&
           bytes < units << (UNIT_SHIFT - 1) && is_torch(caller);
}

/* ---- interposed ---- */

EXPORT int posix_memalign(void **out, size_t align, size_t bytes) {
    int refused = 0;
    if (wanted(align, bytes, __builtin_return_address(0))) {
        void *p = arena_alloc(bytes, &refused);
        if (p) { *out = p; return 0; }
        if (refused) return ENOMEM;
    }
    if (!real_posix_memalign) resolve();
    return real_posix_memalign(out, align, bytes);
}

EXPORT void *memalign(size_t align, size_t bytes) {
    int refused = 0;
    void *p = wanted(align, bytes, __builtin_return_address(0)) ? arena_alloc(bytes, &refused) : NULL;
    if (refused) errno = ENOMEM;
    if (p || refused) return p;
    if (!real_memalign) resolve();
    return real_memalign(align, bytes);
}

EXPORT void *aligned_alloc(size_t align, size_t bytes) {
    int refused = 0;
    void *p = wanted(align, bytes, __builtin_return_address(0)) ? arena_alloc(bytes, &refused) : NULL;
    if (refused) errno = ENOMEM;
    if (p || refused) return p;
    if (!real_aligned_alloc) resolve();
    return real_aligned_alloc(align, bytes);
}

EXPORT void free(void *p) {
    if (!p) return;
    if (ours(p)) { arena_free(p); return; }
    if (real_free) real_free(p); /* before it is known only the loader frees: a few bytes may leak */
}

EXPORT size_t malloc_usable_size(void *p) {
    if (p && ours(p)) return (size_t)block_len[(size_t)((char *)p - base) >> GRAIN_SHIFT] << GRAIN_SHIFT;
    if (!real_usable) resolve();
    return real_usable(p);
}

EXPORT void *realloc(void *p, size_t bytes) {
    if (!real_realloc) resolve();
    if (!p || !ours(p)) return real_realloc(p, bytes);
    size_t old = malloc_usable_size(p);
    void *q = bytes ? malloc(bytes) : NULL;
    if (q) memcpy(q, p, old < bytes ? old : bytes);
    if (q || !bytes) arena_free(p);
    return q;
}

EXPORT void *reallocarray(void *p, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) { errno = ENOMEM; return NULL; }
    return realloc(p, bytes);
}

/* ---- the interface for Python ---- */

static void *reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void before_fork(void) { pthread_mutex_lock(&mu); }
static void after_fork(void) { pthread_mutex_unlock(&mu); }
static void init_locks(void) {
    init_cond(&changed);
    init_cond(&pressed);
    pthread_mutex_init(&mu, NULL);
}
static void in_child(void) {
    init_locks();
    enabled = 0;
    S.waiters = S.short_bytes = 0;
}

/* Reserves `bytes` of address space (rounded to units). Returns 0, or -1 with errno. Once a process. */
EXPORT int lull_arena_init(int64_t bytes, int64_t min_block, int huge) {
    if (base) return 0;
    size_t n = (size_t)bytes >> UNIT_SHIFT;
    char *p = reserve((n + 1) << UNIT_SHIFT);
    block_len = reserve(n * PER_UNIT * sizeof *block_len);
    unit_used = reserve(n * sizeof *unit_used);
    unit_there = reserve(n);
    ext = reserve(MAX_EXTENTS * sizeof *ext);
    if (!p || !block_len || !unit_used || !unit_there || !ext) return -1;
    p = (char *)(((uintptr_t)p + UNIT - 1) & ~(uintptr_t)(UNIT - 1));
    madvise(p, n << UNIT_SHIFT, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    init_locks();
    pthread_atfork(before_fork, after_fork, in_child);
    gil_held = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    threshold = (size_t)min_block < GRAIN ? GRAIN : (size_t)min_block;
    ext[0] = (struct extent){0, (uint32_t)(n * PER_UNIT)};
    n_ext = 1;
    units = n;
    S.cap = INT64_MAX / 2;
    S.range = (int64_t)(n << UNIT_SHIFT);
    S.base = (int64_t)(uintptr_t)p;
    base = p;
    return 0;
}

/* Routes large requests of every thread of this process to the arena, or to libc. Returns the old value. */
EXPORT int lull_arena_enable(int on) { return __atomic_exchange_n(&enabled, on, __ATOMIC_SEQ_CST); }

/* What a request above the cap does: wait up to wait_us (0: not at all), then overdraft or fail. */
EXPORT void lull_arena_policy(int64_t wait_us, int may_overdraft) {
    pthread_mutex_lock(&mu);
    max_wait_us = wait_us;
    overdraft = may_overdraft;
    pthread_mutex_unlock(&mu);
}

/* Serves every caller, not PyTorch alone: for tests. */
EXPORT void lull_arena_serve_all(int on) { serve_all = on; }

/* While on, requests above the cap fail, waiting ones too. */
EXPORT void lull_arena_fail(int on) {
    pthread_mutex_lock(&mu);
    failing = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mu);
}

/* From now on resident does not pass `bytes`. What is above already stays until it is trimmed. */
EXPORT void lull_arena_set_cap(int64_t bytes) {
    pthread_mutex_lock(&mu);
    S.cap = bytes;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mu);
}

/* Gives cached units back until resident <= target. Returns the bytes given back. */
EXPORT int64_t lull_arena_trim(int64_t target) {
    pthread_mutex_lock(&mu);
    int64_t freed = S.resident > target ? (int64_t)trim_locked(S.resident - target) : 0;
    pthread_mutex_unlock(&mu);
    return freed;
}

/* Bytes in wholly free resident units: what a trim could give back now. */
EXPORT int64_t lull_arena_cached(void) {
    int64_t n = 0;
    pthread_mutex_lock(&mu);
    for (size_t u = 0; u < high_unit; u++) n += unit_there[u] && !unit_used[u];
    pthread_mutex_unlock(&mu);
    return n << UNIT_SHIFT;
}

__attribute__((constructor)) static void start(void) { resolve(); }

/* lull.run says "PID line" for its own process, and lull.attach takes it back: who never attaches is told at the
 * end. Children inherit the variable, and are not meant. */
__attribute__((destructor)) static void say_unattached(void) {
    char *line = getenv("LULL_UNATTACHED");
    if (!line || strtol(line, &line, 10) != getpid() || *line != ' ') return;
    ssize_t ignored = write(2, line + 1, strlen(line + 1));
    (void)ignored;
}
