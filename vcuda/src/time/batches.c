/* batches.c: what threads were granted, from the first launch to the span that it becomes. */
#include "time/batches.h"

#include <pthread.h>
#include <stdlib.h>

#include "clock.h"
#include "time/account.h"

#define QUIET_NS 2000000u /* a batch that is open for longer is ended by the helper */

__thread struct batch pacer_batches[BATCHES] __attribute__((tls_model("initial-exec")));

/* The blocks of all threads that have launched. `registry_lock` guards the list; taken before a queue's lock. No driver call
 * is made under it. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered {
    struct batch *batches;
    struct registered *next;
} *registry;
static pthread_key_t registry_key;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

/* Streams that the program let capture; `captures_lock` guards the list. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture {
    CUstream stream;
    struct capture *next;
} *captures;
static uint32_t capture_count; /* atomic */

bool batches_any_captures(void)
{
    return __atomic_load_n(&capture_count, __ATOMIC_ACQUIRE) != 0;
}

/* Also a stream of which no hook was told may capture: it waited for an event of one that does. */
bool batches_capturing(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing) != NULL &&
           (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool batches_take(struct batch *batch, struct part *part)
{
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    bool any = false;
    if (queue == NULL)
        return false;
    pthread_mutex_lock(&queue->lock);
    if (__atomic_load_n(&batch->queue, __ATOMIC_RELAXED) == queue) { /* nobody else has ended it meanwhile */
        __atomic_store_n(&batch->turn, 0, __ATOMIC_RELAXED);
        uint32_t launches = batch->granted - __atomic_load_n(&batch->credits, __ATOMIC_RELAXED);
        CUstream stream = __atomic_load_n(&batch->stream, __ATOMIC_RELAXED);
        if (batch->serial == queue->serial) {
            queue->granted_ns -= batch->granted_ns;
            batch->flow->granted_ns -= batch->granted_ns;
            *part = (struct part){.flow = batch->flow,
                                  .stream = stream != NULL ? stream : CU_STREAM_LEGACY,
                                  .launches = launches,
                                  .estimate_ns = queue->mean_ns * launches,
                                  .opened_ns = batch->opened_ns,
                                  .serial = batch->serial};
            any = launches != 0;
            if (any) {
                part->flow->in_flight_ns += part->estimate_ns;
                queue->in_flight_ns += part->estimate_ns;
            } else {
                spans_flow_back(part->flow);
            }
        }
        __atomic_store_n(&batch->queue, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&queue->lock);
    return any;
}

bool batches_let_be(struct batch *batch, uint64_t older_ns)
{
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    struct part part;
    if (queue == NULL)
        return false;
    pthread_mutex_lock(&queue->lock);
    bool open = __atomic_load_n(&batch->queue, __ATOMIC_RELAXED) == queue && older_ns != 0 &&
                clock_ns() < batch->opened_ns + older_ns;
    pthread_mutex_unlock(&queue->lock);
    if (open)
        return true;
    if (batches_take(batch, &part)) {
        pthread_mutex_lock(&queue->lock);
        if (queue->serial == part.serial)
            spans_end_unseen(queue, &part);
        pthread_mutex_unlock(&queue->lock);
    }
    return false;
}

void batches_let_be_all_of(const struct queue *queue)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++) {
            struct batch *batch = &thread->batches[i];
            if (__atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE) == queue &&
                __atomic_load_n(&batch->granted, __ATOMIC_RELAXED) != 1)
                batches_let_be(batch, 0);
        }
    pthread_mutex_unlock(&registry_lock);
}

/* The thread ends, and its block, which goes with it, is forgotten. */
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
        batches_let_be(&gone->batches[i], 0);
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

/* Nobody launches by what was granted on it, and nobody asks the driver about it any more. */
static void let_stream_be(CUstream stream)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            if (__atomic_load_n(&thread->batches[i].stream, __ATOMIC_RELAXED) == stream)
                batches_let_be(&thread->batches[i], 0);
    pthread_mutex_unlock(&registry_lock);
    spans_leave_alone(stream);
}

void pacer_stream_ends(CUstream stream)
{
    pacer_capture_ends(stream);
    let_stream_be(stream);
}

void pacer_capture_begins(CUstream stream)
{
    struct capture *ours = malloc(sizeof *ours);
    if (ours != NULL) {
        pthread_mutex_lock(&captures_lock);
        *ours = (struct capture){stream, captures};
        captures = ours;
        __atomic_add_fetch(&capture_count, 1, __ATOMIC_RELEASE);
        pthread_mutex_unlock(&captures_lock);
    }
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++)
        pacer_set_gate(i, 0); /* everybody asks again: a stream may join the capture */
    let_stream_be(stream);
}

void pacer_capture_ends(CUstream stream)
{
    pthread_mutex_lock(&captures_lock);
    for (struct capture **at = &captures; *at != NULL; at = &(*at)->next)
        if ((*at)->stream == stream) {
            struct capture *gone = *at;
            *at = gone->next;
            free(gone);
            __atomic_sub_fetch(&capture_count, 1, __ATOMIC_RELEASE);
            break;
        }
    pthread_mutex_unlock(&captures_lock);
}

bool pacer_collect(bool all)
{
    bool busy = false;
    uint64_t now = clock_ns();
    struct queue *queue;
    struct before before;
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            busy = batches_let_be(&thread->batches[i], all ? 0 : QUIET_NS) || busy;
    pthread_mutex_unlock(&registry_lock);
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        pthread_mutex_lock(&queue->lock);
        bool any = queue->context != NULL && queue->count != 0;
        pthread_mutex_unlock(&queue->lock);
        if (!any || !spans_enter(queue, &before))
            continue;
        spans_reap(queue);
        spans_leave(queue, &before);
        pthread_mutex_lock(&queue->lock);
        if (queue->context != NULL && queue->count != 0) {
            spans_charge_unfinished(queue, now);
            account_active(queue->index, now, false);
            busy = true;
        }
        pthread_mutex_unlock(&queue->lock);
    }
    return busy;
}
