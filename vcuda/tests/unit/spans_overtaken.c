/* spans_overtaken.c: what becomes of a context's spans where another thread, or an error, comes between.
 *
 *     spans_overtaken CASE      prints "GOT WANTED"
 *
 * The driver is played: its events happen, and its calls come back, when a case says so.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "state.h"
#include "time/spans.h"

#define MILLISECOND 1000000u
#define ONE ((CUcontext)(uintptr_t)0x1000)
#define NEXT ((CUcontext)(uintptr_t)0x2000)
#define FIRST ((CUstream)(uintptr_t)0x10)
#define LAST ((CUstream)(uintptr_t)0x20)

static uintptr_t events;
static CUresult (*asked)(CUevent event);
static void (*recording)(void);
static struct queue *queue;

static CUresult makes(CUevent *event, unsigned int flags)
{
    (void)flags;
    *event = (CUevent)++events;
    return CUDA_SUCCESS;
}

static CUresult records(CUevent event, CUstream stream)
{
    void (*happens)(void) = recording;
    (void)event;
    (void)stream;
    recording = NULL;
    if (happens != NULL)
        happens();
    return CUDA_SUCCESS;
}

static CUresult answers(CUevent event)
{
    return asked != NULL ? asked(event) : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *ms, CUevent from, CUevent to)
{
    (void)from;
    (void)to;
    *ms = 1;
    return CUDA_SUCCESS;
}

static CUresult goes_on(CUstream stream)
{
    (void)stream;
    return CUDA_ERROR_NOT_READY;
}

static struct flow *flow_of(CUstream stream)
{
    pthread_mutex_lock(&queue->lock);
    struct flow *flow = spans_flow(queue, stream);
    pthread_mutex_unlock(&queue->lock);
    return flow;
}

static struct part launched(CUstream stream, uint64_t ago_ns)
{
    return (struct part){.flow = flow_of(stream),
                         .stream = stream,
                         .launches = 1,
                         .opened_ns = clock_ns() - ago_ns,
                         .serial = queue->serial};
}

static void unseen(const struct part *part)
{
    pthread_mutex_lock(&queue->lock);
    spans_end_unseen(queue, part);
    pthread_mutex_unlock(&queue->lock);
}

/* A kernel was charged for the time that it has gone on. Then its stream has more, and both end with one event. */
static void charged_then_joined(void)
{
    struct part before = launched(FIRST, 400 * MILLISECOND);
    unseen(&before);
    spans_reap(queue);
    pthread_mutex_lock(&queue->lock);
    spans_charge_unfinished(queue, clock_ns());
    uint64_t charged = queue->spans[0].charged_ns;
    pthread_mutex_unlock(&queue->lock);
    struct part behind = launched(FIRST, 0);
    spans_end(queue, &behind);
    printf("%llu %llu\n", (unsigned long long)queue->spans[0].charged_ns, (unsigned long long)charged);
}

static CUevent end_of_the_last;
static int times;

/* Another thread prolongs the last span, whose end has happened. The second time it ends with the same event as before. */
static CUresult prolonged(CUevent event)
{
    if (event != end_of_the_last)
        return CUDA_ERROR_NOT_READY;
    end_of_the_last = NULL;
    for (int i = 0; i < times; i++) {
        struct part more = launched(LAST, 0);
        spans_end(queue, &more);
    }
    return CUDA_SUCCESS;
}

static void asked_about_while_it_is_prolonged(int count)
{
    for (int i = 0; i < SPANS; i++) {
        struct part part = launched(i < SPANS - 1 ? FIRST : LAST, 0);
        spans_end(queue, &part);
    }
    end_of_the_last = queue->spans[SPANS - 1].end;
    times = count;
    asked = prolonged;
    spans_reap(queue);
    printf("%u %d\n", queue->count, SPANS);
}

static void prolonged_while_it_is_asked_about(void)
{
    asked_about_while_it_is_prolonged(1);
}

static void prolonged_twice_meanwhile(void)
{
    asked_about_while_it_is_prolonged(2);
}

/* The context ends, and another one takes its place. */
static void ends_and_begins(void)
{
    spans_forget(ONE);
    spans_queue(NEXT, 0);
}

static void ended_while_a_beginning_is_recorded(void)
{
    struct flow *flow = flow_of(FIRST);
    recording = ends_and_begins;
    spans_begin(queue, queue->serial, FIRST, flow, true);
    printf("%d %d\n", (queue->begin != NULL) + (queue->base != NULL) + (queue->spares != 0), 0);
}

static int status = 1;

/* The child has no thread that asks: there is none for which the end of a stream is to wait. */
static CUresult forks(CUevent event)
{
    (void)event;
    asked = NULL;
    pid_t child = fork();
    if (child == 0) {
        spans_begin_anew();
        spans_leave_alone(FIRST);
        _exit(queue->reaping);
    }
    waitpid(child, &status, 0);
    return CUDA_ERROR_NOT_READY;
}

static void forked_while_it_is_asked_about(void)
{
    struct part part = launched(FIRST, 0);
    spans_end(queue, &part);
    asked = forks;
    spans_reap(queue);
    printf("%d %d\n", status, 0);
}

static CUresult done(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fails(CUevent event)
{
    (void)event;
    return CUDA_ERROR_LAUNCH_FAILED;
}

/* What was seen of a stream's work, beside another's, is of the span that then ends, and not of the stream's next one. */
static void print_what_is_left(struct flow *flow)
{
    flow->worked_ns = MILLISECOND;
    spans_reap(queue);
    printf("%llu %d\n", (unsigned long long)(queue->count + flow->worked_ns), 0);
}

static void ended_with_others_unseen(void)
{
    struct part part = launched(FIRST, 0);
    unseen(&part);
    driver.cuStreamQuery = done;
    print_what_is_left(flow_of(FIRST));
}

static void ended_with_an_error(void)
{
    struct part part = launched(FIRST, 0);
    spans_end(queue, &part);
    asked = fails;
    print_what_is_left(flow_of(FIRST));
}

static const struct {
    const char *name;
    void (*happens)(void);
} cases[] = {
    {"charged_then_joined", charged_then_joined},
    {"prolonged_while_it_is_asked_about", prolonged_while_it_is_asked_about},
    {"prolonged_twice_meanwhile", prolonged_twice_meanwhile},
    {"ended_while_a_beginning_is_recorded", ended_while_a_beginning_is_recorded},
    {"forked_while_it_is_asked_about", forked_while_it_is_asked_about},
    {"ended_with_others_unseen", ended_with_others_unseen},
    {"ended_with_an_error", ended_with_an_error},
};

int main(int count, char **arguments)
{
    if (count != 2 || !active())
        return 2;
    driver.cuEventCreate = makes;
    driver.cuEventRecord = records;
    driver.cuEventQuery = answers;
    driver.cuEventElapsedTime = elapsed;
    driver.cuStreamQuery = goes_on;
    queue = spans_queue(ONE, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strcmp(arguments[1], cases[i].name) == 0) {
            cases[i].happens();
            return 0;
        }
    return 2;
}
