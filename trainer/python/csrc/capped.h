/*
 * What the two arenas (arena.c, vmm.c) have in common: counters that Python reads without a call, one mutex, a cap, and
 * a thread that is told when memory is short. Each includes it once, after
 *
 *     #define CAPPED(name) lull_arena_##name
 *     #define OWN_STATS waits, wait_us, ...     what it counts besides
 *
 * and gets a struct of its own with COMMON_STATS first (lull/_capped.py reads them), S for it, and the functions below.
 */
#ifndef LULL_CAPPED_H
#define LULL_CAPPED_H
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define COMMON_STATS \
    resident, in_use, cap, peak_resident, peak_in_use, blocks, failures, trims, trimmed, short_bytes, base, range

/* Bytes, or counts since start. Written under the mutex. */
EXPORT struct CAPPED(stats) { int64_t COMMON_STATS, OWN_STATS; } CAPPED(stats);
#define S CAPPED(stats)

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pressed; /* memory is short */

static int64_t now_us(void) {
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC, &t), (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* A condition whose waits end by now_us. */
static void init_cond(pthread_cond_t *c) {
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
}

static void wait_until(pthread_cond_t *c, int64_t at_us) { /* mutex held */
    struct timespec t = {at_us / 1000000, at_us % 1000000 * 1000};
    pthread_cond_timedwait(c, &mu, &t);
}

/* Tells wait_short's thread how many bytes a request misses. Mutex held. */
static void press(int64_t missing) {
    if (missing > S.short_bytes) S.short_bytes = missing;
    pthread_cond_signal(&pressed);
}

/* Blocks until a request misses memory (returns its bytes), a wake (1) or timeout_us passed (0). */
EXPORT int64_t CAPPED(wait_short)(int64_t timeout_us) {
    pthread_mutex_lock(&mu);
    int64_t deadline = now_us() + timeout_us;
    while (!S.short_bytes && now_us() < deadline) wait_until(&pressed, deadline);
    int64_t n = S.short_bytes;
    S.short_bytes = 0;
    pthread_mutex_unlock(&mu);
    return n;
}

/* Ends a wait_short early, with nothing to report. */
EXPORT void CAPPED(wake)(void) {
    pthread_mutex_lock(&mu);
    if (!S.short_bytes) S.short_bytes = 1;
    pthread_cond_broadcast(&pressed);
    pthread_mutex_unlock(&mu);
}

/* Starts both peaks again from what holds now. */
EXPORT void CAPPED(reset_peak)(void) {
    pthread_mutex_lock(&mu);
    S.peak_resident = S.resident;
    S.peak_in_use = S.in_use;
    pthread_mutex_unlock(&mu);
}
#endif
