#include "memory/deferred_frees.h"

#include <stdlib.h>

#include "capture_mode.h"
#include "clock.h"
#include "device.h"
#include "memory/linear.h"
#include "process.h"

#define MOMENT_NS 20000u            /* between looks whether another thread has left the driver */
#define LONGEST_WAIT_NS 1000000000u /* that the end of a context waits for one that asks about an event of it */

struct deferred_free {
    struct deferred_free *next;
    struct allocation allocation;
    CUcontext context; /* of the stream; NULL: unknown */
    CUevent event;     /* NULL: none could be recorded, and the end of the context has to do */
    bool ending;       /* the context is about to end */
    bool over;         /* it has ended */
    bool discharged;   /* by the thread that has seen it end; otherwise by the one that takes the entry out */
};

/* Around driver calls: makes the context current, and lets the thread call what captures of others forbid. */
struct before {
    bool pushed;
    CUstreamCaptureMode mode;
};

static bool enter(CUcontext context, struct before *before)
{
    CUcontext current = NULL;
    *before = (struct before){.mode = capture_mode_relaxed()};
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return true;
    before->pushed = REAL(cuCtxPushCurrent_v2)(device_context_for_all(context)) == CUDA_SUCCESS;
    return before->pushed;
}

static void leave(const struct before *before)
{
    CUcontext popped;
    if (before->pushed)
        REAL(cuCtxPopCurrent_v2)(&popped);
    capture_mode_exchange(before->mode);
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

/* Whether the stream has come to the free. An error other than "not ready" is the context's end, or a fault after which nothing
 * of it runs any more. */
static bool is_done(struct deferred_free *entry)
{
    struct before before;
    bool done = enter(entry->context, &before) && REAL(cuEventQuery)(entry->event) != CUDA_ERROR_NOT_READY;
    if (done)
        REAL(cuEventDestroy_v2)(entry->event);
    leave(&before);
    return done;
}

/* The caller holds the lock, which the function releases while it asks the driver. */
static bool asked_is_done(struct deferred_frees *all, struct deferred_free *entry)
{
    if (entry->over || entry->ending || entry->event == NULL)
        return entry->over;
    all->asked = entry;
    pthread_mutex_unlock(&all->lock);
    bool done = is_done(entry);
    pthread_mutex_lock(&all->lock);
    all->asked = NULL;
    return done || entry->over;
}

/* Without the lock. True where any was not discharged before. */
static bool finish(struct deferred_free *done)
{
    bool any = false;
    while (done != NULL) {
        struct deferred_free *next = done->next;
        if (!done->discharged) {
            linear_freed(CUDA_SUCCESS, true, &done->allocation);
            any = true;
        }
        free(done);
        done = next;
    }
    return any;
}

bool deferred_frees_settle(void)
{
    struct deferred_frees *all = &process()->deferred_frees;
    struct deferred_free *done = NULL, **at = &all->taken;
    if (likely(__atomic_load_n(&all->list, __ATOMIC_RELAXED) == NULL))
        return false;
    pthread_mutex_lock(&all->lock);
    bool ours = !all->asking;
    if (ours) {
        all->asking = true;
        all->taken = all->list;
        __atomic_store_n(&all->list, NULL, __ATOMIC_RELAXED);
    }
    while (ours && *at != NULL) {
        struct deferred_free *entry = *at;
        if (asked_is_done(all, entry)) {
            *at = entry->next;
            entry->next = done;
            done = entry;
        } else {
            at = &entry->next;
        }
    }
    if (ours) {
        *at = all->list;
        __atomic_store_n(&all->list, all->taken, __ATOMIC_RELAXED);
        all->taken = NULL;
        all->asking = false;
    }
    pthread_mutex_unlock(&all->lock);
    return finish(done);
}

/* Under the lock. */
static void mark_ending(struct deferred_free *list, CUcontext context, bool ending)
{
    for (struct deferred_free *entry = list; entry != NULL; entry = entry->next)
        if (entry->context == context)
            entry->ending = ending;
}

void deferred_frees_context_ends(CUcontext context)
{
    struct deferred_frees *all = &process()->deferred_frees;
    uint64_t until = clock_ns() + LONGEST_WAIT_NS;
    pthread_mutex_lock(&all->lock);
    mark_ending(all->list, context, true);
    mark_ending(all->taken, context, true);
    while (all->asked != NULL && all->asked->context == context && clock_ns() < until) {
        pthread_mutex_unlock(&all->lock);
        clock_sleep(MOMENT_NS);
        pthread_mutex_lock(&all->lock);
    }
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock. */
static void mark_over(struct deferred_free *list, CUcontext context)
{
    for (struct deferred_free *entry = list; entry != NULL; entry = entry->next)
        entry->over = entry->over || entry->context == context;
}

/* Those that are over and that no thread goes through. The caller holds the lock. */
static struct deferred_free *take_over(struct deferred_frees *all)
{
    struct deferred_free *found = NULL;
    for (struct deferred_free **at = &all->list; *at != NULL;) {
        struct deferred_free *entry = *at;
        if (!entry->over) {
            at = &entry->next;
            continue;
        }
        __atomic_store_n(at, entry->next, __ATOMIC_RELAXED);
        entry->next = found;
        found = entry;
    }
    return found;
}

/* Of those that a thread goes through, one that is over and still charged: from now on it is the caller's to discharge. The
 * caller holds the lock. */
static bool take_charged(struct deferred_frees *all, struct allocation *allocation)
{
    for (struct deferred_free *entry = all->taken; entry != NULL; entry = entry->next)
        if (entry->over && !entry->discharged) {
            entry->discharged = true;
            *allocation = entry->allocation;
            return true;
        }
    return false;
}

/* All of the context are marked under one hold of the lock: while this thread discharges one, the other may put those to which
 * it has come already back into the list, and a new context may have the same handle. */
void deferred_frees_context_ended(CUcontext context, bool gone)
{
    struct deferred_frees *all = &process()->deferred_frees;
    struct deferred_free *done = NULL;
    struct allocation allocation;
    pthread_mutex_lock(&all->lock);
    if (gone) {
        mark_over(all->list, context);
        mark_over(all->taken, context);
        while (take_charged(all, &allocation)) {
            pthread_mutex_unlock(&all->lock);
            linear_freed(CUDA_SUCCESS, true, &allocation);
            pthread_mutex_lock(&all->lock);
        }
        done = take_over(all);
    } else {
        mark_ending(all->list, context, false);
        mark_ending(all->taken, context, false);
    }
    pthread_mutex_unlock(&all->lock);
    finish(done);
}
