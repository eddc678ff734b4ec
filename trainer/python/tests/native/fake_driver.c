/*
 * A CUDA driver that only keeps books, for the tests of csrc/vmm.c: memory is counted, streams are queues of kernels,
 * events and waits that complete when a test says so, and each function fails when told.
 *
 * What a GPU would answer with a fault or with silent damage is counted as a violation, with a sentence: unmapping what a
 * queued kernel will touch, a kernel on memory that is not mapped, a kernel that runs before an earlier one on the same
 * bytes, unmapping a part, mapping twice, an unknown handle.
 */
#include "../../csrc/vmm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)2 << 20)
#define BASE 0x700000000000ull

enum { KERNEL, RECORD, WAIT };
struct op { int kind; uint64_t order; vmm_address at; size_t bytes; uint64_t record; };
struct stream { struct op *ops; size_t n, next, room; long queued, ran; };
struct event { uint64_t record; };
struct memory { size_t bytes; int live; vmm_address at; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static struct stream streams[16];
static struct memory memories[1 << 20];
static size_t n_memories, capacity, used, range;
static int *page_of; /* handle + 1 that is mapped at this page, else 0 */
static uint64_t order, records;
static uint8_t ran[1 << 22]; /* by record: whether the stream has come to it */
static int violations, calls[32], fail_at[32], fail_code[32];
static char story[256];

#define LOCK pthread_mutex_lock(&mu)
#define DONE(r) do { int r_ = (r); pthread_mutex_unlock(&mu); return r_; } while (0)

static void violate(const char *text) {
    if (!violations++) snprintf(story, sizeof story, "%s", text);
}

static int injected(int which) {
    calls[which]++;
    if (fail_at[which] && --fail_at[which] == 0) return fail_code[which];
    return 0;
}
#define ENTER(which) LOCK; { int f = injected(which); if (f) DONE(f); }

static int f_init(unsigned flags) { (void)flags; ENTER(0); DONE(0); }
static int f_device(int *d, int o) { ENTER(1); *d = o; DONE(0); }
static int f_attribute(int *v, int a, int d) { (void)d; ENTER(2); *v = a == VMM_SUPPORTED; DONE(0); }
static int f_retain(vmm_context *c, int d) { (void)d; ENTER(3); *c = (void *)1; DONE(0); }
static int f_push(vmm_context c) { return c != (void *)1; }
static int f_pop(vmm_context *c) { *c = (void *)1; return 0; }
static int f_granularity(size_t *b, const struct vmm_prop *p, int o) {
    (void)o;
    ENTER(6);
    if (p->type != VMM_PINNED || p->location.type != VMM_ON_DEVICE) violate("granularity of other memory");
    *b = PAGE;
    DONE(0);
}
static int f_reserve(vmm_address *at, size_t bytes, size_t align, vmm_address hint, unsigned long long flags) {
    (void)hint, (void)flags;
    ENTER(7);
    if (bytes % PAGE || align % PAGE) DONE(1);
    range = bytes;
    page_of = calloc(bytes / PAGE, sizeof *page_of);
    *at = BASE;
    DONE(0);
}
static int f_create(vmm_handle *h, size_t bytes, const struct vmm_prop *p, unsigned long long flags) {
    (void)p, (void)flags;
    ENTER(8);
    if (used + bytes > capacity) DONE(VMM_OUT_OF_MEMORY);
    used += bytes;
    memories[n_memories] = (struct memory){bytes, 1, 0};
    *h = ++n_memories;
    DONE(0);
}
static int f_release(vmm_handle h) {
    ENTER(9);
    if (!h || h > n_memories || !memories[h - 1].live) { violate("released an unknown handle"); DONE(1); }
    if (memories[h - 1].at) { violate("released a mapped handle"); DONE(1); }
    memories[h - 1].live = 0;
    used -= memories[h - 1].bytes;
    DONE(0);
}
static int f_map(vmm_address at, size_t bytes, size_t offset, vmm_handle h, unsigned long long flags) {
    (void)flags;
    ENTER(10);
    if (!h || h > n_memories || !memories[h - 1].live || memories[h - 1].at || offset || bytes != memories[h - 1].bytes ||
        at < BASE || at + bytes > BASE + range || (at - BASE) % PAGE) { violate("mapped wrongly"); DONE(1); }
    for (size_t i = 0; i < bytes / PAGE; i++) {
        int *page = &page_of[(at - BASE) / PAGE + i];
        if (*page) { violate("mapped twice"); DONE(1); }
        *page = (int)h;
    }
    memories[h - 1].at = at;
    DONE(0);
}
static int overlaps(const struct op *o, vmm_address at, size_t bytes) { return o->at < at + bytes && at < o->at + o->bytes; }
static int f_unmap(vmm_address at, size_t bytes) {
    ENTER(11);
    int h = at >= BASE && at < BASE + range ? page_of[(at - BASE) / PAGE] : 0;
    if (!h || memories[h - 1].at != at || memories[h - 1].bytes != bytes) { violate("unmapped what is no mapping"); DONE(1); }
    for (size_t s = 0; s < 16; s++)
        for (size_t i = streams[s].next; i < streams[s].n; i++)
            if (streams[s].ops[i].kind == KERNEL && overlaps(&streams[s].ops[i], at, bytes)) violate("unmapped under a queued kernel");
    memset(&page_of[(at - BASE) / PAGE], 0, bytes / PAGE * sizeof *page_of);
    memories[h - 1].at = 0;
    DONE(0);
}
static int f_access(vmm_address at, size_t bytes, const struct vmm_access *a, size_t n) {
    (void)at, (void)bytes;
    ENTER(12);
    if (n != 1 || a->flags != VMM_READ_WRITE || a->location.type != VMM_ON_DEVICE) violate("other access");
    DONE(0);
}
static int f_event_create(vmm_event *e, unsigned flags) {
    (void)flags;
    ENTER(13);
    *e = calloc(1, sizeof(struct event));
    DONE(0);
}
static struct op *push(size_t s, struct op o) {
    struct stream *st = &streams[s];
    if (st->next == st->n) st->next = st->n = 0;
    if (st->n == st->room) st->ops = realloc(st->ops, (st->room = st->room ? 2 * st->room : 64) * sizeof o);
    o.order = ++order;
    st->queued++;
    st->ops[st->n] = o;
    return &st->ops[st->n++];
}
static int f_record(vmm_event e, vmm_stream s) {
    ENTER(14);
    struct event *ev = e;
    if (records + 1 == sizeof ran) DONE(1);
    ev->record = ++records;
    push((size_t)s, (struct op){.kind = RECORD, .record = ev->record});
    DONE(0);
}
static int f_query(vmm_event e) {
    ENTER(15);
    struct event *ev = e;
    DONE(ran[ev->record] || !ev->record ? 0 : VMM_NOT_READY);
}
static int f_wait(vmm_stream s, vmm_event e, unsigned flags) {
    (void)flags;
    ENTER(16);
    struct event *ev = e;
    push((size_t)s, (struct op){.kind = WAIT, .record = ev->record});
    DONE(0);
}

static struct vmm_driver table = {f_init, f_device, f_attribute, f_retain, f_push, f_pop, f_granularity, f_reserve, f_create,
                                  f_release, f_map, f_unmap, f_access, f_event_create, f_record, f_query, f_wait};
struct vmm_driver *fake_table(void) { return &table; }

void fake_capacity(size_t bytes) { LOCK; capacity = bytes; pthread_mutex_unlock(&mu); }
size_t fake_used(void) { return used; }
int fake_violations(char *into, size_t room) { snprintf(into, room, "%s", story); return violations; }
int fake_calls(int which) { return calls[which]; }

/* Operations that were queued on a stream, and of them those that ran. */
long fake_queued(size_t s) { return streams[s].queued; }
long fake_ran(size_t s) { return streams[s].ran; }
int fake_mapped(vmm_address at) { return page_of[(at - BASE) / PAGE]; }

/* The nth call from now of function `which` (its place in the table) fails with this code; 0 for never. */
void fake_fail(int which, int nth, int code) { LOCK; fail_at[which] = nth; fail_code[which] = code; pthread_mutex_unlock(&mu); }

/* A kernel on these bytes is queued on a stream. */
void fake_launch(size_t s, vmm_address at, size_t bytes) {
    LOCK;
    for (size_t i = (at - BASE) / PAGE; i <= (at + bytes - 1 - BASE) / PAGE; i++)
        if (!page_of[i]) violate("a kernel on memory that is not mapped");
    push(s, (struct op){.kind = KERNEL, .at = at, .bytes = bytes});
    pthread_mutex_unlock(&mu);
}

static int step(size_t s) {
    struct stream *st = &streams[s];
    if (st->next == st->n) return 0;
    struct op *o = &st->ops[st->next];
    if (o->kind == WAIT && !ran[o->record]) return 0;
    if (o->kind == RECORD) ran[o->record] = 1;
    if (o->kind == KERNEL)
        for (size_t other = 0; other < 16; other++)
            for (size_t i = streams[other].next; other != s && i < streams[other].n; i++) {
                struct op *p = &streams[other].ops[i];
                if (p->kind == KERNEL && p->order < o->order && overlaps(p, o->at, o->bytes)) violate("a kernel ran before an earlier one on the same bytes");
            }
    st->next++;
    st->ran++;
    return 1;
}

/* Runs the next n operations of a stream, fewer where one waits for another stream. Returns how many. */
int fake_run(size_t s, int n) {
    int did = 0;
    LOCK;
    while (did < n && step(s)) did++;
    pthread_mutex_unlock(&mu);
    return did;
}
