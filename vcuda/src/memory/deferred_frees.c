#include "memory/deferred_frees.h"

#include <stdlib.h>
#include <time.h>

#include "clock.h"
#include "device.h"
#include "memory/linear.h"
#include "process.h"

#define MOMENT_NS 20000u /* between looks whether another thread has left the driver */
#define LONGEST_WAIT_NS 1000000000u

struct deferred_free {
    struct deferred_free *next;
    struct allocation allocation;
    CUcontext context; /* of the stream; NULL: unknown */
    CUevent event;     /* NULL: none could be recorded, and the end of the context has to do */
    bool ending;       /* the context is about to end */
};

/* Around driver calls: makes the context current, and lets the thread call what captures of others forbid. */
struct before {
    bool pushed;
    CUstreamCaptureMode mode;
};

static bool enter(CUcontext context, struct before *before)
{
    CUcontext current = NULL;
    *before = (struct before){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&before->mode);
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return true;
    before->pushed = REAL(cuCtxPushCurrent_v2)(device_context_for_all(context)) == CUDA_SUCCESS;
    return before->pushed;
}

static void leave(struct before *before)
{
    CUcontext popped;
    if (before->pushed)
        REAL(cuCtxPopCurrent_v2)(&popped);
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&before->mode);
}

/* An event in the stream as it is now; NULL where the driver makes none. */
static CUevent event_in(CUcontext context, CUstream stream)
{
    struct before before;
    CUevent event = NULL;
    if (enter(context, &before) && REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
        REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    leave(&before);
    return event;
}

void deferred_frees_add(const struct allocation *allocation, CUstream stream)
{
    struct deferred_frees *all = &process()->deferred_frees;
    struct deferred_free *entry = malloc(sizeof *entry);
    int index;
    if (entry == NULL) {
        linear_freed(CUDA_SUCCESS, true, allocation);
        return;
    }
    *entry = (struct deferred_free){.allocation = *allocation};
    if (stream_device(stream, &entry->context, &index))
        entry->event = event_in(entry->context, stream);
    pthread_mutex_lock(&all->lock);
    entry->next = all->list;
    __atomic_store_n(&all->list, entry, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&all->lock);
    pools_will_shrink(); /* the helper looks soon */
}

/* An error other than "not ready" is the context's end, or a fault after which nothing of it runs any more. */
static bool is_done(struct deferred_free *entry)
{
    struct before before;
    if (entry->event == NULL)
        return false;
    bool done = enter(entry->context, &before) && REAL(cuEventQuery)(entry->event) != CUDA_ERROR_NOT_READY;
    if (done)
        REAL(cuEventDestroy_v2)(entry->event);
    leave(&before);
    return done;
}

static void finish(struct deferred_free *entry)
{
    linear_freed(CUDA_SUCCESS, true, &entry->allocation);
    free(entry);
}

bool deferred_frees_settle(void)
{
    struct deferred_frees *all = &process()->deferred_frees;
    if (likely(__atomic_load_n(&all->list, __ATOMIC_RELAXED) == NULL))
        return false;
    pthread_mutex_lock(&all->lock);
    struct deferred_free *taken = all->asking ? NULL : all->list;
    if (taken != NULL) {
        all->asking = true;
        __atomic_store_n(&all->list, NULL, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&all->lock);
    if (taken == NULL)
        return false;
    struct deferred_free *done = NULL, **last = &taken;
    while (*last != NULL) {
        struct deferred_free *entry = *last;
        if (entry->ending || !is_done(entry)) {
            last = &entry->next;
            continue;
        }
        *last = entry->next;
        entry->next = done;
        done = entry;
    }
    pthread_mutex_lock(&all->lock);
    *last = all->list;
    __atomic_store_n(&all->list, taken, __ATOMIC_RELAXED);
    all->asking = false;
    pthread_mutex_unlock(&all->lock);
    bool any = done != NULL;
    while (done != NULL) {
        struct deferred_free *next = done->next;
        finish(done);
        done = next;
    }
    return any;
}

/* The caller holds the lock; the function releases it meanwhile. */
static void wait_for_asker(struct deferred_frees *all)
{
    uint64_t until = clock_ns() + LONGEST_WAIT_NS;
    while (all->asking && clock_ns() < until) {
        pthread_mutex_unlock(&all->lock);
        nanosleep(&(struct timespec){0, MOMENT_NS}, NULL);
        pthread_mutex_lock(&all->lock);
    }
}

void deferred_frees_context_ends(CUcontext context)
{
    struct deferred_frees *all = &process()->deferred_frees;
    pthread_mutex_lock(&all->lock);
    wait_for_asker(all);
    for (struct deferred_free *entry = all->list; entry != NULL; entry = entry->next)
        entry->ending = entry->ending || entry->context == context;
    pthread_mutex_unlock(&all->lock);
}

void deferred_frees_context_ended(CUcontext context, bool gone)
{
    struct deferred_frees *all = &process()->deferred_frees;
    struct deferred_free *done = NULL;
    pthread_mutex_lock(&all->lock);
    wait_for_asker(all);
    for (struct deferred_free **at = &all->list; *at != NULL;) {
        struct deferred_free *entry = *at;
        if (entry->context != context || !gone) {
            entry->ending = entry->ending && entry->context != context;
            at = &entry->next;
            continue;
        }
        __atomic_store_n(at, entry->next, __ATOMIC_RELAXED);
        entry->next = done;
        done = entry;
    }
    pthread_mutex_unlock(&all->lock);
    while (done != NULL) {
        struct deferred_free *next = done->next;
        finish(done);
        done = next;
    }
}
