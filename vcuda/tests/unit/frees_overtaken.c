/* frees_overtaken.c: a context ends while another thread asks the driver about memory that was freed in the order of streams.
 *
 *     frees_overtaken ORDER    prints the driver calls for the context after its end, and the bytes charged then; then the same
 *                              once the other context's stream has come to its free
 *
 * The driver is played. The context that ends has freed two allocations, the other one: "before" it or "after" it. The thread
 * that ends the context discharges one, and goes on when the other thread has come back.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "memory/charge.h"
#include "memory/deferred_frees.h"
#include "memory/linear.h"
#include "played_driver.h"
#include "state.h"

#define ONE ((CUcontext)(uintptr_t)0x1000)
#define OTHER ((CUcontext)(uintptr_t)0x2000)
#define BYTES ((uint64_t)64 << 20)

static CUcontext current;
static CUevent of_one, of_other; /* behind the free in each */
static int ended, asked_after, comes;
static int discharging, settled; /* atomic: the thread that ends the context has discharged one; the other has come back */
static pthread_t ender;
static __thread int ends;

CUresult __real_linear_freed(CUresult result, bool ours, const struct allocation *allocation);
CUresult __wrap_linear_freed(CUresult result, bool ours, const struct allocation *allocation);

CUresult __wrap_linear_freed(CUresult result, bool ours, const struct allocation *allocation)
{
    CUresult answer = __real_linear_freed(result, ours, allocation);
    if (ends) {
        __atomic_store_n(&discharging, 1, __ATOMIC_RELEASE);
        wait_until(&settled);
    }
    return answer;
}

static void *ends_the_other(void *unused)
{
    ends = 1;
    deferred_frees_context_ended(OTHER, true);
    return unused;
}

static CUresult gets(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult pushes(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

static CUresult pops(CUcontext *context)
{
    *context = current;
    current = ONE;
    return CUDA_SUCCESS;
}

static CUresult makes(CUevent *event, unsigned int flags)
{
    static uintptr_t events;
    (void)flags;
    *event = (CUevent)++events;
    return CUDA_SUCCESS;
}

static CUresult records(CUevent event, CUstream stream)
{
    (void)stream;
    *(current == ONE ? &of_one : &of_other) = event;
    return CUDA_SUCCESS;
}

static CUresult destroys(CUevent event)
{
    asked_after += ended && event == of_other;
    return CUDA_SUCCESS;
}

/* While the driver is asked about the one, another thread ends the other, and is half way through. */
static CUresult answers(CUevent event)
{
    asked_after += ended && event == of_other;
    if (event == of_one && !ended) {
        deferred_frees_context_ends(OTHER);
        ended = 1;
        pthread_create(&ender, NULL, ends_the_other, NULL);
        wait_until(&discharging);
    }
    return comes ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static void frees_in(CUcontext context, uint64_t key)
{
    struct allocation allocation = {.key = key,
                                    .bytes = BYTES,
                                    .context = (uint64_t)(uintptr_t)context,
                                    .kind = KIND_LINEAR,
                                    .count = 1};
    current = context;
    if (!charge(0, BYTES))
        return;
    deferred_frees_add(&allocation, NULL);
}

int main(int count, char **arguments)
{
    if (!active() || count != 2)
        return 2;
    bool before = strcmp(arguments[1], "before") == 0;
    driver.cuCtxGetCurrent = gets;
    driver.cuCtxPushCurrent_v2 = pushes;
    driver.cuCtxPopCurrent_v2 = pops;
    play_device();
    driver.cuEventCreate = makes;
    driver.cuEventRecord = records;
    driver.cuEventDestroy_v2 = destroys;
    driver.cuEventQuery = answers;
    if (before)
        frees_in(ONE, 1);
    frees_in(OTHER, 2);
    frees_in(OTHER, 3);
    if (!before)
        frees_in(ONE, 1);
    deferred_frees_settle();
    __atomic_store_n(&settled, 1, __ATOMIC_RELEASE);
    pthread_join(ender, NULL);
    printf("%d %llu\n", asked_after, (unsigned long long)ledger_held(ledger, 0));
    comes = 1;
    deferred_frees_settle();
    printf("%d %llu\n", asked_after, (unsigned long long)ledger_held(ledger, 0));
    return 0;
}
