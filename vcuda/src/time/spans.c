/* spans.c: events around batches, and what they say. */
#include "time/spans.h"

#include <string.h>

#include "capture_mode.h"
#include "clock.h"
#include "device.h"
#include "least.h"
#include "time/account.h"
#include "time/captures.h"

#define QUEUES 128
#define REBASE_NS 60000000000u   /* elapsed times are floats: count from a base that is not too far back */
#define SAMPLE_NS 1000000u       /* between launches that are measured by themselves: each costs some microseconds */
#define UNFINISHED_NS 100000000u /* what goes on for longer is charged before it ends */
#define MOMENT_NS 20000u         /* between looks whether others have left the driver */
#define LONGEST_WAIT_NS 1000000000u

static struct queue queues[QUEUES];
/* Guards every queue's at_work_since_ns, and that the ledger says the earliest of them. Taken behind a queue's lock, so that who
 * holds that may read the queue's own without this one. */
static pthread_mutex_t at_work_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t queues_lock = PTHREAD_MUTEX_INITIALIZER; /* guards taking and giving up of entries */
static uint32_t queues_used;                                    /* entries beyond were never taken; atomic */

static void start(struct queue *queue, CUcontext context, int index)
{
    __atomic_store_n(&queue->index, index, __ATOMIC_RELAXED);
    __atomic_store_n(&queue->for_all, device_context_for_all(context), __ATOMIC_RELAXED);
    queue->count = queue->spares = 0;
    queue->in_flight_ns = queue->granted_ns = queue->cursor_ns = queue->base_ns = 0;
    queue->sampled_ns = queue->waiter = 0;
    queue->estimate = (struct estimate){0};
    queue->held_ns[0] = queue->held_ns[1] = 0;
    __atomic_store_n(&queue->oldest_since_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&queue->wanted_ns, 0, __ATOMIC_RELAXED);
    queue->begin = queue->base = NULL;
    queue->idled = queue->reaping = queue->beginning = false;
    memset(queue->flows, 0, sizeof queue->flows);
    queue->serial++;
    __atomic_store_n(&queue->context, context, __ATOMIC_RELEASE);
}

struct queue *spans_queue(CUcontext context, int index)
{
    uint32_t used = __atomic_load_n(&queues_used, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < used; i++)
        if (__atomic_load_n(&queues[i].context, __ATOMIC_ACQUIRE) == context)
            return &queues[i];
    pthread_mutex_lock(&queues_lock);
    struct queue *found = NULL, *free = NULL;
    for (uint32_t i = 0; i < QUEUES && found == NULL; i++) {
        if (i == queues_used && free == NULL) {
            pthread_mutex_init(&queues[i].lock, NULL);
            __atomic_store_n(&queues_used, i + 1, __ATOMIC_RELEASE);
        }
        if (i >= queues_used)
            break;
        CUcontext its = __atomic_load_n(&queues[i].context, __ATOMIC_ACQUIRE);
        found = its == context ? &queues[i] : NULL; /* another thread has made it meanwhile */
        free = free == NULL && its == NULL ? &queues[i] : free;
    }
    if (found == NULL && free != NULL) {
        pthread_mutex_lock(&free->lock);
        start(free, context, index);
        pthread_mutex_unlock(&free->lock);
        found = free;
    }
    pthread_mutex_unlock(&queues_lock);
    return found;
}

/* The caller holds the lock; the function releases it and waits until `busy` is 0, for a second at most. */
static void wait_for_others(struct queue *queue, bool only_reaping)
{
    uint64_t until = clock_ns() + LONGEST_WAIT_NS;
    while ((only_reaping ? queue->reaping : queue->callers != 0) && clock_ns() < until) {
        pthread_mutex_unlock(&queue->lock);
        clock_sleep(MOMENT_NS);
        pthread_mutex_lock(&queue->lock);
    }
}

void spans_leave_alone(CUstream stream)
{
    struct queue *queue;
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        pthread_mutex_lock(&queue->lock);
        for (uint32_t j = 0; j < queue->count; j++)
            if (queue->spans[j].stream == stream)
                queue->spans[j].stream = NULL;
        wait_for_others(queue, true);
        pthread_mutex_unlock(&queue->lock);
    }
}

struct queue *spans_walk(uint32_t i)
{
    return i < __atomic_load_n(&queues_used, __ATOMIC_ACQUIRE) ? &queues[i] : NULL;
}

static __thread char own_stream __attribute__((tls_model("initial-exec"))); /* its place is another one in each thread */

/* NULL is the legacy stream by another name, and each thread has a stream of its own under one name. */
static uint64_t key_of(CUstream stream)
{
    if (stream == CU_STREAM_PER_THREAD)
        return (uint64_t)(uintptr_t)&own_stream;
    return (uint64_t)(uintptr_t)(stream != NULL ? stream : CU_STREAM_LEGACY);
}

/* Under the lock. One for which there is no room is left to the context. */
static void event_back(struct queue *queue, CUevent event)
{
    if (event != NULL && queue->spares < 2 * SPANS)
        queue->spare[queue->spares++] = event;
}

struct flow *spans_flow(struct queue *queue, CUstream stream)
{
    uint64_t key = key_of(stream);
    struct flow *free = NULL;
    for (struct flow *flow = &queue->flows[1]; flow < &queue->flows[FLOWS]; flow++) {
        if (flow->uses != 0 && flow->key == key) {
            flow->uses++;
            return flow;
        }
        if (free == NULL && flow->uses == 0)
            free = flow;
    }
    if (free == NULL) {
        free = &queue->flows[0];
    } else {
        event_back(queue, free->begin);
        *free = (struct flow){.key = key};
    }
    free->uses++;
    return free;
}

void spans_flow_back(struct flow *flow)
{
    flow->uses--;
}

uint64_t spans_oldest_of_others(const struct queue *queue, const struct flow *flow)
{
    for (uint32_t i = 0; i < queue->count; i++)
        if (queue->spans[i].flow != flow)
            return queue->spans[i].id;
    return 0;
}

uint64_t spans_on_other_devices(const struct queue *queue, uint64_t *estimate_ns)
{
    const struct queue *other;
    uint64_t oldest = 0;
    *estimate_ns = 0;
    for (uint32_t i = 0; (other = spans_walk(i)) != NULL; i++) {
        uint64_t since = __atomic_load_n(&other->oldest_since_ns, __ATOMIC_ACQUIRE);
        if (since == 0 || __atomic_load_n(&other->index, __ATOMIC_RELAXED) == queue->index || (oldest != 0 && since >= oldest))
            continue;
        oldest = since;
        *estimate_ns = __atomic_load_n(&other->all_in_flight_ns, __ATOMIC_RELAXED);
    }
    return oldest;
}

/* Another context of the process on the same device has or wants work since then, or has some in flight. */
static bool is_beside(const struct queue *queue, const struct queue *other, uint64_t since_ns, bool in_flight)
{
    return __atomic_load_n(&other->context, __ATOMIC_ACQUIRE) != NULL &&
           __atomic_load_n(&other->wanted_ns, __ATOMIC_RELAXED) > since_ns &&
           (!in_flight || __atomic_load_n(&other->oldest_since_ns, __ATOMIC_ACQUIRE) != 0) &&
           __atomic_load_n(&other->index, __ATOMIC_RELAXED) == queue->index &&
           __atomic_load_n(&other->for_all, __ATOMIC_RELAXED) != queue->for_all;
}

/* Those that are parts of one primary context count once. */
static uint32_t count_beside(const struct queue *queue, uint64_t since_ns, bool in_flight)
{
    const struct queue *other, *before;
    uint32_t count = 0;
    for (uint32_t i = 0; (other = spans_walk(i)) != NULL; i++) {
        bool counts = is_beside(queue, other, since_ns, in_flight);
        for (uint32_t j = 0; counts && j < i && (before = spans_walk(j)) != NULL; j++)
            counts =
                __atomic_load_n(&before->for_all, __ATOMIC_RELAXED) != __atomic_load_n(&other->for_all, __ATOMIC_RELAXED) ||
                !is_beside(queue, before, since_ns, in_flight);
        count += counts;
    }
    return count;
}

uint32_t spans_contexts_beside(const struct queue *queue, uint64_t since_ns)
{
    return count_beside(queue, since_ns, false);
}

static uint32_t at_work_beside(const struct queue *queue, uint64_t end_ns)
{
    return count_beside(queue, end_ns - CONTENDER_NS, true);
}

bool spans_all_stand(const struct queue *queue)
{
    for (uint32_t i = 0; i < queue->count; i++)
        if (queue->spans[i].begun || queue->spans[i].stood_ns == 0)
            return false;
    return true;
}

uint32_t spans_flows(const struct queue *queue)
{
    uint32_t count = 0;
    for (const struct flow *flow = queue->flows; flow < &queue->flows[FLOWS]; flow++)
        count += flow->uses != 0;
    return count;
}

uint64_t spans_stands_since(const struct queue *queue, const struct flow *flow)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        const struct span *span = &queue->spans[i];
        if (span->flow == flow)
            return span->unfinished_ns != 0 && !span->begun ? span->begin_ns : 0;
    }
    return 0;
}

bool spans_goes_on_since(const struct queue *queue, const struct flow *flow, uint64_t since_ns)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        const struct span *span = &queue->spans[i];
        bool stands = !span->begun && span->stood_ns != 0;
        if (span->flow != flow && span->begin_ns <= since_ns && !stands)
            return true;
    }
    return false;
}

bool spans_enter(struct queue *queue, struct before *before)
{
    CUcontext current = NULL;
    pthread_mutex_lock(&queue->lock);
    CUcontext context = queue->context, for_all = queue->for_all;
    if (context != NULL)
        queue->callers++;
    pthread_mutex_unlock(&queue->lock);
    if (context == NULL)
        return false;
    *before = (struct before){.mode = capture_mode_relaxed()};
    if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context)
        return true;
    before->pushed = REAL(cuCtxPushCurrent_v2)(for_all) == CUDA_SUCCESS;
    if (!before->pushed)
        spans_leave(queue, before);
    return before->pushed;
}

void spans_leave(struct queue *queue, const struct before *before)
{
    CUcontext popped;
    if (before->pushed)
        REAL(cuCtxPopCurrent_v2)(&popped);
    capture_mode_exchange(before->mode);
    pthread_mutex_lock(&queue->lock);
    queue->callers--;
    pthread_mutex_unlock(&queue->lock);
}

/* Under the lock: the same where the context is still that of the serial. One that has ended takes its events along. */
static void event_back_of(struct queue *queue, uint64_t serial, CUevent event)
{
    if (queue->serial == serial)
        event_back(queue, event);
}

static CUevent event_from(struct queue *queue, uint64_t serial)
{
    CUevent event = NULL;
    pthread_mutex_lock(&queue->lock);
    if (queue->serial == serial && queue->spares != 0)
        event = queue->spare[--queue->spares];
    pthread_mutex_unlock(&queue->lock);
    return event != NULL || REAL(cuEventCreate)(&event, CU_EVENT_DEFAULT) == CUDA_SUCCESS ? event : NULL;
}

static CUevent recorded(struct queue *queue, uint64_t serial, CUstream stream)
{
    CUevent event = event_from(queue, serial);
    if (event == NULL || REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS)
        return event;
    pthread_mutex_lock(&queue->lock);
    event_back_of(queue, serial, event);
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

/* The base is recorded right before a beginning, on the same stream: what the program has in that stream before it may make
 * it happen later than it was recorded, which correct_base puts right. */
static void rebase(struct queue *queue, uint64_t serial, CUstream stream, uint64_t now)
{
    CUevent base = recorded(queue, serial, stream);
    pthread_mutex_lock(&queue->lock);
    if (base != NULL && queue->count == 0 && queue->serial == serial) {
        event_back(queue, queue->base);
        queue->base = base;
        queue->base_ns = now;
        queue->cursor_ns = 0;
    } else {
        event_back_of(queue, serial, base);
    }
    pthread_mutex_unlock(&queue->lock);
}

/* Under the lock. Whether something was launched into other streams to which the GPU may not have come yet: what is launched
 * into this one may wait for that. */
static bool others_may_stand(const struct queue *queue, const struct flow *flow)
{
    for (uint32_t i = 0; i < queue->count; i++)
        if (queue->spans[i].flow != flow && !queue->spans[i].begun)
            return true;
    return queue->begin != NULL && queue->begins != flow;
}

/* Behind what is in flight: its time is what the stream waited for other things than the GPU, which is no work. */
static void begin_behind(struct queue *queue, uint64_t serial, CUstream stream, struct flow *flow)
{
    uint64_t now = clock_ns();
    CUevent begin = recorded(queue, serial, stream);
    pthread_mutex_lock(&queue->lock);
    if (queue->serial == serial && flow->begin == NULL) {
        flow->begin = begin;
        flow->begin_ns = now;
    } else {
        event_back_of(queue, serial, begin); /* another thread has recorded one meanwhile */
    }
    pthread_mutex_unlock(&queue->lock);
}

bool spans_begin(struct queue *queue, uint64_t serial, CUstream stream, struct flow *flow, bool apart)
{
    pthread_mutex_lock(&queue->lock);
    if (queue->serial != serial) {
        pthread_mutex_unlock(&queue->lock);
        return false;
    }
    bool idle = (queue->count == 0 || queue->idled) && queue->begin == NULL && !queue->beginning;
    bool old = queue->base == NULL || (queue->count == 0 && clock_ns() - queue->base_ns > REBASE_NS);
    bool known = apart || others_may_stand(queue, flow);
    bool behind = known && queue->base != NULL && flow->begin == NULL && flow != &queue->flows[0] && queue->count < DEEP;
    queue->beginning = queue->beginning || idle;
    pthread_mutex_unlock(&queue->lock);
    if (!idle && behind)
        begin_behind(queue, serial, stream, flow);
    if (!idle)
        return false; /* something is in flight: its end is this one's beginning */
    uint64_t now = clock_ns();
    if (old)
        rebase(queue, serial, stream, now);
    CUevent begin = recorded(queue, serial, stream);
    pthread_mutex_lock(&queue->lock);
    bool sample = false;
    if (queue->serial == serial) {
        queue->begin = begin;
        queue->begins = flow;
        queue->begin_ns = now;
        queue->beginning = false;
        sample = queue->granted_ns == 0 && now - queue->sampled_ns >= SAMPLE_NS;
    }
    if (sample)
        queue->sampled_ns = now;
    pthread_mutex_unlock(&queue->lock);
    return sample;
}

/* When it can have begun at the earliest. */
static uint64_t earliest_of(const struct span *span)
{
    return most_of(span->begin_ns, span->stood_ns);
}

/* Says since when what the context has in flight may have run and is not accounted for (0: nothing is), and for other processes
 * which of all contexts on the device has the earliest. */
static void publish_at_work(struct queue *queue, uint64_t since_ns)
{
    const struct queue *other;
    uint64_t earliest = UINT64_MAX;
    if (queue->at_work_since_ns == since_ns)
        return; /* as with most launches: earlier work is in flight */
    pthread_mutex_lock(&at_work_lock);
    queue->at_work_since_ns = since_ns;
    for (uint32_t i = 0; (other = spans_walk(i)) != NULL; i++)
        if (other->at_work_since_ns != 0 && __atomic_load_n(&other->index, __ATOMIC_RELAXED) == queue->index)
            earliest = least_of(earliest, other->at_work_since_ns);
    account_in_flight_since(queue->index, earliest != UINT64_MAX ? earliest : 0);
    pthread_mutex_unlock(&at_work_lock);
}

/* Under the lock: since when something is in flight that is not accounted for. To other queues that is since when something
 * waits, whatever it waits for; what is charged leaves out the time in which nothing can have run. */
static void publish_oldest(struct queue *queue)
{
    uint64_t at_work = queue->count != 0 ? UINT64_MAX : 0;
    for (uint32_t i = 0; i < queue->count; i++)
        at_work = least_of(at_work, earliest_of(&queue->spans[i]));
    publish_at_work(queue, at_work != 0 ? most_of(at_work, queue->cursor_ns) : 0);
    uint64_t since = queue->count != 0 ? queue->spans[0].begin_ns : 0;
    if (since != 0 && since < queue->cursor_ns)
        since = queue->cursor_ns;
    __atomic_store_n(&queue->all_in_flight_ns, queue->in_flight_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&queue->oldest_since_ns, since, __ATOMIC_RELEASE);
}

static void take_out(struct queue *queue, uint32_t i)
{
    struct span *span = &queue->spans[i];
    span->flow->in_flight_ns -= span->estimate_ns;
    queue->in_flight_ns -= span->estimate_ns;
    spans_flow_back(span->flow);
    event_back(queue, span->begin);
    event_back(queue, span->end);
    queue->count--;
    memmove(span, span + 1, (queue->count - i) * sizeof *span);
}

/* The older of the beginnings that were recorded in the flow's stream, which its next part has; NULL: there is none, and the
 * part begins where what was in flight before it ends. */
static CUevent take_begin(struct queue *queue, struct flow *flow, uint64_t *begin_ns)
{
    bool first = queue->begin != NULL && queue->begins == flow && (flow->begin == NULL || queue->begin_ns <= flow->begin_ns);
    CUevent begin = first ? queue->begin : flow->begin;
    if (begin != NULL)
        *begin_ns = first ? queue->begin_ns : flow->begin_ns;
    if (first)
        queue->begin = NULL;
    else
        flow->begin = NULL;
    return begin;
}

/* There is room for no more spans: the last one goes on. To wait for one could be to wait for ever, where the GPU waits for
 * what the program does after this launch. */
static void prolong(struct queue *queue, const struct part *part, CUevent end, uint64_t now)
{
    struct span *last = &queue->spans[SPANS - 1];
    uint64_t begin_ns;
    event_back(queue, take_begin(queue, part->flow, &begin_ns));
    if (end != NULL) {
        event_back(queue, last->end);
        last->end = end;
        last->end_ns = now;
        last->prolonged++;
    }
    last->launches += part->launches;
    last->estimate_ns += part->estimate_ns;
    last->flow->in_flight_ns += part->estimate_ns;
    part->flow->in_flight_ns -= part->estimate_ns;
    spans_flow_back(part->flow);
    publish_oldest(queue);
}

/* Under the lock. Parts of the same stream without a recorded end, end with this one. */
static void put(struct queue *queue, const struct part *part, CUevent end, bool idled, uint64_t now)
{
    if (queue->count == SPANS) {
        prolong(queue, part, end, now);
        return;
    }
    uint64_t begin_ns = part->opened_ns;
    CUevent begin = take_begin(queue, part->flow, &begin_ns);
    struct span span = {begin,
                        end,
                        part->stream,
                        part->flow,
                        ++queue->next_id,
                        part->launches,
                        idled,
                        begin == NULL,
                        part->estimate_ns,
                        begin_ns,
                        now,
                        0,
                        0,
                        0,
                        0};
    for (uint32_t i = 0; i < queue->count; i++) {
        struct span *unseen = &queue->spans[i];
        if (unseen->end != NULL || unseen->flow != part->flow || part->flow == &queue->flows[0])
            continue;
        span.launches += unseen->launches;
        span.estimate_ns += unseen->estimate_ns;
        part->flow->in_flight_ns += unseen->estimate_ns;
        queue->in_flight_ns += unseen->estimate_ns;
        span.begin_ns = unseen->begin_ns;
        span.charged_ns += unseen->charged_ns;
        span.stood_ns = most_of(span.stood_ns, unseen->stood_ns);
        event_back(queue, span.begin);
        span.begin = unseen->begin;
        span.begun = unseen->begun;
        unseen->begin = NULL;
        take_out(queue, i--);
    }
    queue->spans[queue->count++] = span;
    queue->idled = idled;
    publish_oldest(queue);
}

void spans_end(struct queue *queue, const struct part *part)
{
    spans_reap(queue);
    pthread_mutex_lock(&queue->lock);
    bool none = queue->count == 0;
    pthread_mutex_unlock(&queue->lock);
    /* Unknown of what others launched since: they have begun none of their own, or it would be in flight. */
    bool idled = none && REAL(cuStreamQuery) != NULL && REAL(cuStreamQuery)(part->stream) == CUDA_SUCCESS;
    uint64_t now = clock_ns();
    CUevent end = recorded(queue, part->serial, part->stream);
    pthread_mutex_lock(&queue->lock);
    if (queue->serial == part->serial)
        put(queue, part, end, idled && end != NULL, now); /* without an event its stream is asked */
    pthread_mutex_unlock(&queue->lock);
}

void spans_end_unseen(struct queue *queue, const struct part *part)
{
    put(queue, part, NULL, false, part->opened_ns);
    if (part->stream == CU_STREAM_PER_THREAD && queue->count != 0)
        queue->spans[queue->count - 1].stream = NULL; /* to another thread it is another stream */
}

/* Nothing happens before it was recorded or while it is seen not to have, nor after it was seen to have happened. So far off
 * was the base's time, or so much has the GPU's clock drifted since: the base is put right, and this span's times (0: unknown)
 * with it. */
static void correct_base(struct queue *queue, const struct span *span, uint64_t *begin, uint64_t *end, uint64_t seen_ns)
{
    uint64_t earliest = most_of(span->end_ns, span->unfinished_ns);
    int64_t off = 0;
    if (*begin != 0 && *begin < span->begin_ns)
        off = (int64_t)(span->begin_ns - *begin);
    if (*end != 0 && *end + (uint64_t)off < earliest)
        off = (int64_t)(earliest - *end);
    if (off == 0 && *end > seen_ns)
        off = -(int64_t)(*end - seen_ns);
    queue->base_ns += (uint64_t)off;
    *begin += *begin != 0 ? (uint64_t)off : 0;
    *end += *end != 0 ? (uint64_t)off : 0;
}

/* How long a launch into another stream was held while this span went on: it may have waited for that one. */
static uint64_t held_beside(const struct queue *queue, const struct span *span, uint64_t begin, uint64_t end)
{
    uint64_t from = most_of(queue->held_ns[0], begin), to = least_of(queue->held_ns[1], end);
    return queue->estimate.mean_ns != 0 && queue->held != span->flow && to > from ? to - from : 0;
}

static bool is_oldest_of_its_flow(const struct queue *queue, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (queue->spans[j].flow == queue->spans[i].flow)
            return false;
    return true;
}

/* Under the lock: since when the i-th span may have been worked on beside one that began then; UINT64_MAX: not at all. */
static uint64_t beside_since(const struct queue *queue, uint32_t i, const struct span *span, uint64_t begin)
{
    const struct span *other = &queue->spans[i];
    if (other->flow == span->flow || !other->begun || !is_oldest_of_its_flow(queue, i))
        return UINT64_MAX;
    return most_of(begin, earliest_of(other));
}

/* Under the lock: what of the work that was seen up to the end of a span is its own. Of streams side by side the first to end
 * seems to have taken all the time, and the others none: the GPU gave each its part for as long as it was there. */
static uint64_t part_of(struct queue *queue, const struct span *span, uint64_t work_ns, uint64_t begin, uint64_t end)
{
    uint64_t all = end > begin ? end - begin : 1, own = work_ns;
    for (uint32_t i = 0; i < queue->count; i++) {
        uint64_t since = beside_since(queue, i, span, begin);
        all += since < end ? end - since : 0;
    }
    for (uint32_t i = 0; i < queue->count; i++) {
        uint64_t since = beside_since(queue, i, span, begin);
        uint64_t part = since < end ? (uint64_t)((double)work_ns * (double)(end - since) / (double)all) : 0;
        queue->spans[i].flow->worked_ns += part;
        own -= least_of(part, own);
    }
    own += span->flow->worked_ns;
    span->flow->worked_ns = 0;
    return own;
}

/* Learns from a span what its launches take: at most their part of its work, and at least that without the time in which they
 * may have waited for a launch that was held. Where what is known lies between these, nothing is learned. */
static void learn(struct queue *queue, const struct span *span, struct span_cost cost, uint64_t part, uint64_t held)
{
    struct estimate *estimate = &queue->estimate;
    uint64_t least = part - least_of(held, part);
    bool longer = least / span->launches > estimate->mean_ns, shorter = part / span->launches < estimate->mean_ns;
    if (held == 0 || longer || shorter)
        estimate_learn(estimate, cost, shorter ? part : least, span->launches);
}

/* Charges one span, and learns from it. One in which the GPU idled is as long as its program took over it: its launches
 * count as long as others were, from its beginning on, and teach nothing. */
static void charge_span(struct queue *queue, const struct span *span, uint64_t begin, uint64_t end)
{
    uint64_t solo = estimate_alone(&queue->estimate, span->launches);
    uint64_t guess = span->idled ? estimate_usual(&queue->estimate) * span->launches : 0;
    if (guess != 0)
        end = begin + least_of(guess, end - begin);
    struct span_cost cost = account_span(queue->index, begin, end, span->launches, solo, at_work_beside(queue, end));
    uint64_t held = least_of(held_beside(queue, span, begin, end), cost.work_ns);
    cost.work_ns += span->charged_ns - held;
    if (held != 0)
        cost.most_ns = 0;
    bool waited = cost.work_ns > 2 * span->estimate_ns && queue->estimate.mean_ns != 0 &&
                  account_held_elsewhere(queue->index, begin, end);
    uint64_t part = part_of(queue, span, cost.work_ns + held, begin, end);
    if (guess == 0 && !waited)
        learn(queue, span, cost, part, held);
    queue->cursor_ns = end;
}

/* A span that ended with others, which were charged with all of its time. */
static void charge_none(struct queue *queue, const struct span *span)
{
    account_launches(queue->index, span->launches);
    uint64_t part = part_of(queue, span, 0, 0, 0);
    if (!span->idled && part != 0)
        estimate_learn_part(&queue->estimate, part, span->launches);
}

/* A span whose end was not recorded: it is as long as its launches usually are, within what was seen of it. */
static void charge_unseen(struct queue *queue, const struct span *span, uint64_t begin, uint64_t seen_ns)
{
    uint64_t guess = estimate_usual(&queue->estimate) * span->launches, end = begin + guess;
    bool longer = span->unfinished_ns > end;
    if (longer)
        end = span->unfinished_ns;
    if (end > seen_ns)
        end = seen_ns;
    if (end <= begin) {
        charge_none(queue, span);
        return;
    }
    struct span_cost cost = account_span(queue->index, begin, end, span->launches, 0, at_work_beside(queue, end));
    uint64_t held = held_beside(queue, span, begin, end);
    cost.work_ns -= least_of(held, cost.work_ns);
    cost.work_ns += span->charged_ns;
    cost.most_ns = 0;
    uint64_t part = part_of(queue, span, cost.work_ns, begin, end);
    if ((longer || guess == 0) && cost.work_ns != 0)
        learn(queue, span, cost, part, 0);
    queue->cursor_ns = end;
}

/* Under the lock: what is in flight when its context ends is charged by what was seen of it, or is usual. */
static void charge_the_rest(struct queue *queue)
{
    uint64_t now = clock_ns();
    for (uint32_t i = 0; i < queue->count; i++)
        charge_unseen(queue, &queue->spans[i], most_of(earliest_of(&queue->spans[i]), queue->cursor_ns), now);
    queue->count = 0;
}

void spans_forget(CUcontext context)
{
    struct queue *queue;
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        if (__atomic_load_n(&queue->context, __ATOMIC_ACQUIRE) != context)
            continue;
        pthread_mutex_lock(&queue->lock);
        if (queue->context == context) {
            charge_the_rest(queue);
            queue->serial++;
            __atomic_store_n(&queue->oldest_since_ns, 0, __ATOMIC_RELAXED);
            publish_at_work(queue, 0);
            uint64_t serial = queue->serial;
            wait_for_others(queue, false);
            if (queue->serial == serial) {
                publish_at_work(queue, 0); /* a launch that was under way may have said more */
                __atomic_store_n(&queue->context, NULL, __ATOMIC_RELEASE);
            }
        }
        pthread_mutex_unlock(&queue->lock);
    }
}

void spans_begin_anew(void)
{
    pthread_mutex_init(&queues_lock, NULL);
    pthread_mutex_init(&at_work_lock, NULL);
    for (uint32_t i = 0; i < queues_used; i++) {
        pthread_mutex_init(&queues[i].lock, NULL);
        queues[i].serial++;
        queues[i].callers = 0;
        queues[i].reaping = queues[i].beginning = false; /* the thread that did either is not in the child */
        queues[i].count = 0;
        queues[i].at_work_since_ns = 0;
        __atomic_store_n(&queues[i].oldest_since_ns, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&queues[i].context, NULL, __ATOMIC_RELEASE);
    }
}

/* Of one span, what the driver said. */
struct look {
    uint64_t id, prolonged;
    CUevent begin, end;
    CUstream stream;
    CUresult done;
    bool begun;
    uint64_t asked_ns, seen_ns; /* CLOCK_MONOTONIC before and after */
    float begin_ms, end_ms;     /* since the base; below 0: not known */
};

static float since_base(CUevent base, CUevent event)
{
    float ms;
    if (event == NULL || base == NULL || REAL(cuEventElapsedTime)(&ms, base, event) != CUDA_SUCCESS)
        return -1;
    return ms;
}

/* While some stream captures, no stream is asked: it could be of that capture. */
static CUresult ask(CUstream stream)
{
    if (stream == NULL || captures_any() || REAL(cuStreamQuery) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    return REAL(cuStreamQuery)(stream);
}

static void look_at(struct look *look, CUevent base)
{
    look->begin_ms = look->end_ms = -1;
    look->asked_ns = clock_ns();
    look->done = look->end != NULL ? REAL(cuEventQuery)(look->end) : ask(look->stream);
    if (look->done == CUDA_ERROR_NOT_READY && !look->begun)
        look->begun = REAL(cuEventQuery)(look->begin) == CUDA_SUCCESS;
    look->seen_ns = clock_ns();
    if (look->done != CUDA_SUCCESS || look->end == NULL)
        return;
    look->begin_ms = since_base(base, look->begin);
    look->end_ms = since_base(base, look->end);
}

/* Under the lock: the oldest span of each flow. */
static uint32_t to_look_at(const struct queue *queue, struct look *looks)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < queue->count; i++) {
        const struct span *span = &queue->spans[i];
        if (is_oldest_of_its_flow(queue, i))
            looks[count++] = (struct look){.id = span->id,
                                           .prolonged = span->prolonged,
                                           .begin = span->begin,
                                           .end = span->end,
                                           .stream = span->stream,
                                           .begun = span->begun};
    }
    return count;
}

static uint64_t on_our_clock(const struct queue *queue, float ms)
{
    return ms < 0 ? 0 : queue->base_ns + (uint64_t)((double)ms * 1e6);
}

/* Under the lock: the oldest span of a stream was seen not to have begun, and so has none behind it. */
static void stands(struct queue *queue, struct span *span, uint64_t seen_ns)
{
    for (uint32_t i = 0; i < queue->count; i++) {
        struct span *behind = &queue->spans[i];
        if (behind == span || (behind->flow == span->flow && span->flow != &queue->flows[0]))
            behind->stood_ns = seen_ns;
    }
    publish_oldest(queue);
}

/* Under the lock: accounts for what the driver said. True where the span is done. */
static bool finish(struct queue *queue, uint32_t i, const struct look *look)
{
    struct span *span = &queue->spans[i];
    uint64_t begin = on_our_clock(queue, look->begin_ms), end = on_our_clock(queue, look->end_ms);
    if (look->done == CUDA_ERROR_NOT_READY) {
        span->unfinished_ns = look->asked_ns;
        span->begun = look->begun;
        if (!look->begun)
            stands(queue, span, look->asked_ns);
        return false;
    }
    bool unknown = span->end == NULL && look->done != CUDA_SUCCESS;
    if (unknown && look->seen_ns < span->begin_ns + 2 * span->estimate_ns)
        return false;
    if (end != 0)
        correct_base(queue, span, &begin, &end, look->seen_ns);
    if (begin == 0)
        begin = earliest_of(span);
    if (begin < queue->cursor_ns)
        begin = queue->cursor_ns;
    if (look->done == CUDA_SUCCESS && end > begin)
        charge_span(queue, span, begin, end);
    else if (look->done == CUDA_SUCCESS && end != 0)
        charge_none(queue, span);
    else if (look->done == CUDA_SUCCESS || unknown)
        charge_unseen(queue, span, begin, look->seen_ns);
    else
        span->flow->worked_ns = 0; /* its work is not known, and the stream's next span has no part in it */
    if (queue->waiter == span->id)
        queue->waiter = 0;
    take_out(queue, i);
    publish_oldest(queue);
    return true;
}

/* Under the lock, the first to end first: each is charged for what is not charged yet. Of one that another thread has prolonged
 * meanwhile the driver has said nothing, also where it ends with the same event again. */
static bool finish_all(struct queue *queue, struct look *looks, uint32_t count)
{
    bool any = false;
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < queue->count; i++)
            if (queue->spans[i].id == looks[n].id && looks[n].done == CUDA_SUCCESS)
                queue->spans[i].begun = true;
    for (uint32_t n = 0; n < count; n++) {
        uint32_t next = n;
        for (uint32_t i = n + 1; i < count; i++)
            if (looks[i].end_ms < looks[next].end_ms)
                next = i;
        struct look look = looks[next];
        looks[next] = looks[n];
        for (uint32_t i = 0; i < queue->count; i++)
            if (queue->spans[i].id == look.id && queue->spans[i].prolonged == look.prolonged) {
                any = finish(queue, i, &look) || any;
                break;
            }
    }
    return any;
}

void spans_reap(struct queue *queue)
{
    struct look looks[SPANS];
    pthread_mutex_lock(&queue->lock);
    uint64_t serial = queue->serial;
    bool ours = !queue->reaping, more = ours;
    queue->reaping = true;
    while (more && queue->count != 0 && queue->serial == serial) {
        uint32_t count = to_look_at(queue, looks);
        CUevent base = queue->base;
        pthread_mutex_unlock(&queue->lock);
        for (uint32_t i = 0; i < count; i++)
            look_at(&looks[i], base);
        pthread_mutex_lock(&queue->lock);
        more = queue->serial == serial && finish_all(queue, looks, count);
    }
    if (ours)
        queue->reaping = false;
    pthread_mutex_unlock(&queue->lock);
}

/* Seen to go on after its beginning. Other spans wait for something else than the GPU, or for what is in flight before them. */
static bool runs(const struct span *span)
{
    return span->begun && span->unfinished_ns != 0;
}

/* The oldest span that runs; NULL: none does. */
static struct span *running(struct queue *queue)
{
    for (uint32_t i = 0; i < queue->count; i++)
        if (runs(&queue->spans[i]))
            return &queue->spans[i];
    return NULL;
}

uint64_t spans_worked_ns(const struct queue *queue, uint64_t now_ns)
{
    uint64_t since = UINT64_MAX;
    for (uint32_t i = 0; i < queue->count; i++)
        if (runs(&queue->spans[i]))
            since = least_of(since, earliest_of(&queue->spans[i]));
    since = most_of(since, queue->cursor_ns);
    return now_ns > since ? now_ns - since : 0;
}

void spans_charge_unfinished(struct queue *queue, uint64_t now_ns)
{
    struct span *span = running(queue);
    if (span == NULL)
        return;
    uint64_t begin = most_of(earliest_of(span), queue->cursor_ns), end = least_of(now_ns, span->unfinished_ns);
    if (end < begin + UNFINISHED_NS)
        return;
    span->charged_ns += end - begin;
    account_span(queue->index, begin, end, 0, 0, at_work_beside(queue, end));
    queue->cursor_ns = end;
    publish_oldest(queue);
}
