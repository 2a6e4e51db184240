/* batches.c: what threads were granted, from the first launch to the span that it becomes. */
#include "batches.h"

#include <pthread.h>
#include <stdlib.h>

#include "account.h"
#include "clock.h"
#include "spans.h"

#define QUIET_NS 2000000u /* a batch that is open for longer is closed by the helper */

__thread struct batch pacer_batches[BATCHES] __attribute__((tls_model("initial-exec")));

static uint32_t captures; /* streams that capture now; atomic */

/* The blocks of all threads that have launched. `registry_lock` guards the list; taken before a queue's lock. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered {
    struct batch *batches;
    struct registered *next;
} *registry;
static pthread_key_t registry_key;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

bool batches_any_captures(void)
{
    return __atomic_load_n(&captures, __ATOMIC_RELAXED) != 0;
}

bool batches_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return batches_any_captures() && REAL(cuStreamIsCapturing) != NULL &&
           (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool batches_close(struct batch *batch, uint64_t older_ns)
{
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    bool open = false, pushed;
    if (queue == NULL)
        return false;
    pthread_mutex_lock(&queue->lock);
    if (__atomic_load_n(&batch->queue, __ATOMIC_RELAXED) == queue) { /* nobody else has closed it meanwhile */
        open = older_ns != 0 && clock_ns() < batch->opened_ns + older_ns;
        if (!open) {
            __atomic_store_n(&batch->turn, 0, __ATOMIC_RELAXED);
            if (batch->serial == queue->serial)
                queue->granted_ns -= batch->granted_ns;
            if (batch->serial == queue->serial && !batches_capturing(batch->stream) && spans_enter(queue, &pushed)) {
                spans_end(queue, batch->stream,
                          batch->granted - __atomic_load_n(&batch->credits, __ATOMIC_RELAXED));
                spans_leave(pushed);
            }
            __atomic_store_n(&batch->queue, NULL, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&queue->lock);
    return open;
}

void batches_close_all_of(const struct queue *queue)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++) {
            struct batch *batch = &thread->batches[i];
            bool here = thread->batches == pacer_batches ||
                        __atomic_load_n(&batch->stream, __ATOMIC_RELAXED) != CU_STREAM_PER_THREAD;
            if (here && __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE) == queue &&
                __atomic_load_n(&batch->granted, __ATOMIC_RELAXED) != 1)
                batches_close(batch, 0);
        }
    pthread_mutex_unlock(&registry_lock);
}

/* The thread ends: what it had open is closed, and its block, which goes with it, forgotten. */
static void thread_ends(void *argument)
{
    struct registered *gone = argument;
    pthread_mutex_lock(&registry_lock);
    for (struct registered **at = &registry; *at != NULL; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    for (int i = 0; i < BATCHES; i++)
        batches_close(&gone->batches[i], 0);
    pthread_mutex_unlock(&registry_lock);
    free(gone);
}

static void make_key(void)
{
    pthread_key_create(&registry_key, thread_ends);
}

void batches_register_thread(void)
{
    pthread_once(&registry_once, make_key);
    if (pthread_getspecific(registry_key) != NULL)
        return;
    struct registered *ours = malloc(sizeof *ours);
    if (ours == NULL)
        return;
    ours->batches = pacer_batches;
    pthread_mutex_lock(&registry_lock);
    ours->next = registry;
    registry = ours;
    pthread_mutex_unlock(&registry_lock);
    pthread_setspecific(registry_key, ours);
}

void pacer_stream_ends(CUstream stream)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            if (__atomic_load_n(&thread->batches[i].stream, __ATOMIC_RELAXED) == stream)
                batches_close(&thread->batches[i], 0);
    pthread_mutex_unlock(&registry_lock);
}

void pacer_captures(int change)
{
    __atomic_add_fetch(&captures, (uint32_t)change, __ATOMIC_RELAXED);
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++)
        pacer_set_gate(i, 0); /* everybody asks again */
}

bool pacer_collect(bool all)
{
    bool busy = false, pushed;
    uint64_t now = clock_ns();
    struct queue *queue;
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            busy = batches_close(&thread->batches[i], all ? 0 : QUIET_NS) || busy;
    pthread_mutex_unlock(&registry_lock);
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        pthread_mutex_lock(&queue->lock);
        if (queue->head != queue->tail && spans_enter(queue, &pushed)) {
            spans_reap(queue);
            spans_leave(pushed);
        }
        if (queue->context != NULL && queue->head != queue->tail) {
            account_active(queue->index, now, false);
            busy = true;
        }
        pthread_mutex_unlock(&queue->lock);
    }
    return busy;
}
