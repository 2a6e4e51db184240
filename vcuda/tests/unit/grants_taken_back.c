/* grants_taken_back.c: prints how often a launch takes back what another thread is granted again each time.
 *
 * To take a grant back lasts a millisecond here, and the program gives up after MOST of them. The driver is played: what is in
 * flight in the launch's stream goes on for ever.
 */
#include <stdio.h>

#include "clock.h"
#include "played_driver.h"
#include "state.h"
#include "time/pacer.h"
#include "time/spans.h"

#define MILLISECOND 1000000u
#define MOST 300
#define CONTEXT ((CUcontext)(uintptr_t)0x1000)
#define FIRST ((CUstream)(uintptr_t)0x10)
#define OTHER ((CUstream)(uintptr_t)0x20)

static uintptr_t events;
static int times;

static CUresult current(CUcontext *context)
{
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

static CUresult makes(CUevent *event, unsigned int flags)
{
    (void)flags;
    *event = (CUevent)++events;
    return CUDA_SUCCESS;
}

static CUresult records(CUevent event, CUstream stream)
{
    (void)event;
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult goes_on(CUevent event)
{
    (void)event;
    return CUDA_ERROR_NOT_READY;
}

/* In place of the shim's: the part is not in flight, and its thread is granted as many launches again. */
void __wrap_spans_end_unseen(struct queue *queue, const struct part *part)
{
    struct batch *batch = pacer_batch_of(OTHER);
    part->flow->in_flight_ns -= part->estimate_ns;
    queue->in_flight_ns -= part->estimate_ns;
    moment();
    if (++times == MOST)
        return;
    batch->granted_ns--; /* else nothing would seem to be taken back */
    queue->granted_ns += batch->granted_ns;
    part->flow->granted_ns += batch->granted_ns;
    __atomic_store_n(&batch->queue, queue, __ATOMIC_RELEASE);
}

void __wrap_helper_start(void)
{
}

int main(void)
{
    if (!active())
        return 2;
    play_device();
    driver.cuCtxGetCurrent = current;
    driver.cuEventCreate = makes;
    driver.cuEventRecord = records;
    driver.cuEventQuery = goes_on;
    struct queue *queue = spans_queue(CONTEXT, 0);
    queue->estimate.mean_ns = MILLISECOND / 10;
    queue->sampled_ns = clock_ns(); /* so that more than one launch is granted */
    pacer_admit(OTHER);
    struct flow *flow = spans_flow(queue, FIRST);
    struct part part = {.flow = flow,
                        .stream = FIRST,
                        .launches = 1,
                        .estimate_ns = 50 * MILLISECOND,
                        .opened_ns = clock_ns(),
                        .serial = queue->serial};
    flow->in_flight_ns = queue->in_flight_ns = part.estimate_ns;
    spans_end(queue, &part);
    pacer_admit(FIRST);
    printf("%d\n", times);
    return 0;
}
