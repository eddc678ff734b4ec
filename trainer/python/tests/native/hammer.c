/*
 * Threads that take, use and give back blocks while others trim, move the cap and run the streams, on the fake driver:
 * built with the thread sanitizer by test_vmm_threads.py. Ends with 0, or says what went wrong.
 */
#include "../../csrc/vmm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((int64_t)1 << 20)
#define WORKERS 4
#define TURNS 4000

struct vmm_driver *fake_table(void);
void fake_capacity(size_t);
size_t fake_used(void);
int fake_violations(char *, size_t);
void fake_launch(size_t, vmm_address, size_t);
int fake_run(size_t, int);
int lull_vmm_open(int, int64_t, int64_t, const struct vmm_driver *);
void *lull_vmm_alloc(ptrdiff_t, int, vmm_stream);
void lull_vmm_free(void *, ptrdiff_t, int, vmm_stream);
void lull_vmm_set_cap(int64_t);
int64_t lull_vmm_trim(int64_t);
int64_t lull_vmm_free_bytes(void);
int64_t lull_vmm_wait_short(int64_t);
void lull_vmm_wake(void);

static int over, served;

static void *work(void *seed) {
    unsigned draw = (unsigned)(uintptr_t)seed * 7919u;
    uintptr_t stream = 1 + (uintptr_t)seed;
    void *live[8] = {0};
    ptrdiff_t size[8];
    for (int i = 0; i < TURNS; i++) {
        int k = rand_r(&draw) % 8;
        if (live[k]) {
            lull_vmm_free(live[k], size[k], 0, (void *)stream);
            live[k] = NULL;
        } else if ((live[k] = lull_vmm_alloc(size[k] = (ptrdiff_t)(1 + rand_r(&draw) % 40) * MIB, 0, (void *)stream))) {
            fake_launch(stream, (vmm_address)(uintptr_t)live[k], (size_t)size[k]);
            __atomic_add_fetch(&served, 1, __ATOMIC_RELAXED);
        }
    }
    for (int k = 0; k < 8; k++) lull_vmm_free(live[k], size[k], 0, (void *)stream);
    return NULL;
}

static void *run(void *unused) {
    for (unsigned draw = 1; !__atomic_load_n(&over, __ATOMIC_ACQUIRE);) fake_run(rand_r(&draw) % 16, 3);
    return unused;
}

static void *trim(void *unused) {
    for (unsigned draw = 2; !__atomic_load_n(&over, __ATOMIC_ACQUIRE);) {
        lull_vmm_trim((int64_t)(rand_r(&draw) % 600) * MIB);
        lull_vmm_set_cap((int64_t)(100 + rand_r(&draw) % 500) * MIB);
        lull_vmm_free_bytes();
    }
    return unused;
}

static void *tend(void *unused) {
    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) lull_vmm_wait_short(1000);
    return unused;
}

int main(void) {
    char text[256];
    pthread_t workers[WORKERS], others[3];
    fake_capacity((size_t)(500 * MIB));
    if (lull_vmm_open(0, 1024 * MIB, 8 * MIB, fake_table())) return puts("it did not open"), 1;
    pthread_create(&others[0], NULL, run, NULL);
    pthread_create(&others[1], NULL, trim, NULL);
    pthread_create(&others[2], NULL, tend, NULL);
    for (uintptr_t i = 0; i < WORKERS; i++) pthread_create(&workers[i], NULL, work, (void *)i);
    for (int i = 0; i < WORKERS; i++) pthread_join(workers[i], NULL);
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    lull_vmm_wake();
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
    for (int again = 1; again;)
        for (size_t s = again = 0; s < 16; s++) again += fake_run(s, 1 << 30);
    lull_vmm_trim(0);
    if (fake_violations(text, sizeof text)) return puts(text), 1;
    if (fake_used()) return printf("%zu bytes were never given back\n", fake_used()), 1;
    if (served < TURNS / 4) return printf("only %d blocks were served\n", served), 1;
    return 0;
}
