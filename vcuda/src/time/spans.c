/* spans.c: events around batches, and what they say. */
#include "spans.h"

#include "account.h"
#include "clock.h"

#define QUEUES 128
#define REBASE_NS 60000000000u /* elapsed times are floats: count from a base that is not too far back */
#define SAMPLE_NS 1000000u     /* between launches that are measured by themselves: each costs some microseconds */
#define EVEN_NS 8000000u       /* of launches of one length, before that is believed */
#define MOST_EVEN_NS 40000000u /* so much less EVEN_NS may seem to take longer in a row, before it is believed no more */
#define KNOWN_SPANS 16u        /* over about so many is averaged what a launch takes */
#define KNOWN_SCALE 1024u      /* of the count of launches, so that the average is one of small numbers, too */

static struct queue queues[QUEUES];
static pthread_mutex_t queues_lock = PTHREAD_MUTEX_INITIALIZER; /* guards taking and giving up of entries */
static uint32_t queues_used;                                    /* entries beyond were never taken; atomic */

/* Records the base on a stream of its own, so that none of the program's work is before it, and notes the time. While other
 * contexts have the GPU the event happens some of their slices later: straighten puts that right. */
static void rebase(struct queue *queue)
{
    uint64_t before = clock_ns();
    if (queue->base == NULL || REAL(cuEventRecord)(queue->base, queue->clock) != CUDA_SUCCESS)
        return;
    REAL(cuEventSynchronize)(queue->base);
    queue->base_ns = before;
    queue->cursor_ns = 0;
}

static void start(struct queue *queue, CUcontext context, int index)
{
    queue->index = index;
    queue->head = queue->tail = queue->spares = 0;
    queue->in_flight_ns = queue->granted_ns = queue->mean_ns = queue->solo_ns = queue->cursor_ns = queue->base_ns = 0;
    queue->known_ns = queue->known_launches = queue->sampled_ns = queue->even_ns = 0;
    queue->begin = queue->base = NULL;
    queue->idled = false;
    queue->clock = NULL;
    queue->serial++;
    __atomic_store_n(&queue->context, context, __ATOMIC_RELEASE);
    if (REAL(cuStreamCreate)(&queue->clock, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
        REAL(cuEventCreate)(&queue->base, CU_EVENT_DEFAULT) == CUDA_SUCCESS)
        rebase(queue);
}

struct queue *spans_queue(CUcontext context, int index)
{
    uint32_t used = __atomic_load_n(&queues_used, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < used; i++) {
        if (__atomic_load_n(&queues[i].context, __ATOMIC_ACQUIRE) != context)
            continue;
        pthread_mutex_lock(&queues[i].lock);
        if (queues[i].context == context)
            return &queues[i];
        pthread_mutex_unlock(&queues[i].lock);
    }
    pthread_mutex_lock(&queues_lock);
    struct queue *found = NULL;
    for (uint32_t i = 0; i < QUEUES && found == NULL; i++) {
        if (i == queues_used) {
            pthread_mutex_init(&queues[i].lock, NULL);
            __atomic_store_n(&queues_used, i + 1, __ATOMIC_RELEASE);
        }
        if (__atomic_load_n(&queues[i].context, __ATOMIC_ACQUIRE) == NULL)
            found = &queues[i];
    }
    if (found != NULL) {
        pthread_mutex_lock(&found->lock);
        start(found, context, index);
    }
    pthread_mutex_unlock(&queues_lock);
    return found;
}

void spans_forget(CUcontext context)
{
    struct queue *queue;
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        pthread_mutex_lock(&queue->lock);
        if (queue->context == context) {
            queue->serial++;
            __atomic_store_n(&queue->context, NULL, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&queue->lock);
    }
}

struct queue *spans_walk(uint32_t i)
{
    return i < __atomic_load_n(&queues_used, __ATOMIC_ACQUIRE) ? &queues[i] : NULL;
}

static CUevent event_from(struct queue *queue)
{
    CUevent event = NULL;
    if (queue->spares != 0)
        return queue->spare[--queue->spares];
    return REAL(cuEventCreate)(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? event : NULL;
}

static void event_back(struct queue *queue, CUevent event)
{
    if (event == NULL)
        return;
    if (queue->spares < 2 * SPANS)
        queue->spare[queue->spares++] = event;
    else
        REAL(cuEventDestroy_v2)(event);
}

static CUevent recorded(struct queue *queue, CUstream stream)
{
    CUevent event = event_from(queue);
    if (event != NULL && REAL(cuEventRecord)(event, stream) != CUDA_SUCCESS) {
        event_back(queue, event);
        return NULL;
    }
    return event;
}

bool spans_enter(struct queue *queue, bool *pushed)
{
    CUcontext current = NULL;
    *pushed = false;
    if (queue->context == NULL)
        return false;
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == queue->context)
        return true;
    *pushed = REAL(cuCtxPushCurrent_v2)(queue->context) == CUDA_SUCCESS;
    return *pushed;
}

void spans_leave(bool pushed)
{
    CUcontext popped;
    if (pushed)
        REAL(cuCtxPopCurrent_v2)(&popped);
}

bool spans_begin(struct queue *queue, CUstream stream)
{
    if ((queue->head != queue->tail && !queue->idled) || queue->begin != NULL)
        return false; /* something is in flight: its end is this one's beginning */
    if (queue->head == queue->tail && clock_ns() - queue->base_ns > REBASE_NS)
        rebase(queue);
    queue->begin_ns = clock_ns();
    queue->begin = recorded(queue, stream);
    bool sample = queue->granted_ns == 0 && queue->begin_ns - queue->sampled_ns >= SAMPLE_NS;
    if (sample)
        queue->sampled_ns = queue->begin_ns;
    return sample;
}

/* Whether the GPU is through with all that was launched. Unknown of what others launched since: they have begun none of
 * their own, or it would be in flight. */
static bool through(const struct queue *queue, CUstream stream)
{
    return queue->head == queue->tail && REAL(cuStreamQuery) != NULL && REAL(cuStreamQuery)(stream) == CUDA_SUCCESS;
}

/* There is room for no more spans: the last one goes on. To wait for one could be to wait for ever, where the GPU waits for
 * what the program does after this launch. */
static void prolong(struct span *span, CUstream stream, uint32_t launches, uint64_t estimate)
{
    span->end_ns = clock_ns();
    REAL(cuEventRecord)(span->end, stream);
    span->launches += launches;
    span->estimate_ns += estimate;
}

void spans_end(struct queue *queue, CUstream stream, uint32_t launches)
{
    spans_reap(queue);
    if (launches == 0)
        return;
    uint64_t estimate = queue->mean_ns * launches;
    if (queue->tail - queue->head == SPANS) {
        prolong(&queue->spans[(queue->tail - 1) % SPANS], stream, launches, estimate);
        queue->in_flight_ns += estimate;
        return;
    }
    bool idled = through(queue, stream);
    uint64_t now = clock_ns();
    CUevent end = recorded(queue, stream);
    if (end == NULL)
        return;
    if (queue->head == queue->tail)
        account_in_flight_since(queue->index, queue->begin != NULL ? queue->begin_ns : queue->cursor_ns);
    queue->spans[queue->tail++ % SPANS] = (struct span){queue->begin, end, launches, idled, estimate, queue->begin_ns, now};
    queue->in_flight_ns += estimate;
    queue->begin = NULL;
    queue->idled = idled;
}

/* When the event happened, on the node's clock; 0 when the driver does not say. */
static uint64_t time_of(const struct queue *queue, CUevent event)
{
    float ms;
    if (event == NULL || queue->base == NULL || REAL(cuEventElapsedTime)(&ms, queue->base, event) != CUDA_SUCCESS || ms < 0)
        return 0;
    return queue->base_ns + (uint64_t)((double)ms * 1e6);
}

/* Nothing happens before it was recorded, nor after it was seen to have happened. So far off was the base's time, or so
 * much has the GPU's clock drifted since: the base is put right, and this span's times (0: unknown) with it. */
static void straighten(struct queue *queue, const struct span *span, uint64_t *begin, uint64_t *end, uint64_t seen_ns)
{
    int64_t off = 0;
    if (*begin != 0 && *begin < span->begin_ns)
        off = (int64_t)(span->begin_ns - *begin);
    if (*end != 0 && *end + (uint64_t)off < span->end_ns)
        off = (int64_t)(span->end_ns - *end);
    if (off == 0 && *end > seen_ns)
        off = -(int64_t)(*end - seen_ns);
    queue->base_ns += (uint64_t)off;
    *begin += *begin != 0 ? (uint64_t)off : 0;
    *end += *end != 0 ? (uint64_t)off : 0;
}

static uint64_t least_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* What a launch took of late, on average; 0 while unknown. */
static uint64_t usual(const struct queue *queue)
{
    return queue->known_launches != 0 ? queue->known_ns * KNOWN_SCALE / queue->known_launches : 0;
}

/* The mean leaps up to much longer kernels, so that these are not launched by the dozen, and is no less than the average
 * over more spans: of streams side by side the first to end seems to have taken all the time, and the others none. What a
 * launch takes alone is told by the shortest only where all are alike. */
static void learn(struct queue *queue, struct worth worth, uint32_t launches)
{
    uint64_t each = worth.work_ns / launches + 1, most = worth.most_ns / launches;
    if (each > 4 * queue->mean_ns)
        queue->mean_ns = each;
    else
        queue->mean_ns = (3 * queue->mean_ns + each) / 4;
    bool alike = 4 * most >= 3 * queue->solo_ns && 4 * most <= 5 * queue->solo_ns;
    if (most != 0 && (alike || !worth.disturbed))
        queue->even_ns = alike ? least_of(queue->even_ns + worth.work_ns, MOST_EVEN_NS) : 0;
    queue->even_ns -= least_of(queue->even_ns, worth.cut_ns);
    if (queue->solo_ns == 0 || most == 0 || most > 4 * queue->solo_ns)
        queue->solo_ns = most;
    else if (most < queue->solo_ns)
        queue->solo_ns = (queue->solo_ns + most) / 2;
    else
        queue->solo_ns += (most - queue->solo_ns) / 16;
    queue->known_ns += worth.work_ns - queue->known_ns / KNOWN_SPANS;
    queue->known_launches += launches * KNOWN_SCALE - queue->known_launches / KNOWN_SPANS;
    if (queue->mean_ns < usual(queue))
        queue->mean_ns = usual(queue);
}

/* Charges one span, and learns from it. One in which the GPU idled is as long as its program took over it: its launches
 * count as long as others were, from its beginning on, and teach nothing. */
static void tell(struct queue *queue, const struct span *span, uint64_t begin, uint64_t end)
{
    uint64_t solo = queue->even_ns >= EVEN_NS ? queue->solo_ns * span->launches : 0;
    uint64_t guess = span->idled ? usual(queue) * span->launches : 0;
    if (guess != 0)
        end = begin + least_of(guess, end - begin);
    struct worth worth = account_span(queue->index, begin, end, span->launches, solo);
    if (guess == 0)
        learn(queue, worth, span->launches);
    queue->cursor_ns = end;
}

void spans_reap(struct queue *queue)
{
    while (queue->head != queue->tail) {
        struct span *span = &queue->spans[queue->head % SPANS];
        CUresult done = REAL(cuEventQuery)(span->end);
        if (done == CUDA_ERROR_NOT_READY)
            return;
        uint64_t begin = time_of(queue, span->begin), end = time_of(queue, span->end);
        straighten(queue, span, &begin, &end, clock_ns());
        if (begin < queue->cursor_ns)
            begin = queue->cursor_ns;
        if (done == CUDA_SUCCESS && begin != 0 && end > begin)
            tell(queue, span, begin, end);
        queue->in_flight_ns -= span->estimate_ns;
        queue->head++;
        event_back(queue, span->begin);
        event_back(queue, span->end);
        account_in_flight_since(queue->index, queue->head != queue->tail ? queue->cursor_ns : 0);
    }
}
