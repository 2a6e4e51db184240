/* frees_overtaken.c: a context ends while another thread asks the driver about memory that was freed in the order of streams.
 *
 *     frees_overtaken      prints the driver calls for the context after its end, and the bytes charged then; then the bytes
 *                          charged once the other context's stream has come to its free
 *
 * The driver is played. Each context has freed one allocation.
 */
#include <stdio.h>
#include <string.h>

#include "memory/charge.h"
#include "memory/deferred_frees.h"
#include "process.h"
#include "state.h"

#define ONE ((CUcontext)(uintptr_t)0x1000)
#define OTHER ((CUcontext)(uintptr_t)0x2000)
#define BYTES ((uint64_t)64 << 20)

static CUcontext current;
static CUevent of_one, of_other; /* behind the free in each */
static int ended, asked_after, comes;

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

static CUresult gets_device(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult gets_uuid(CUuuid *uuid, CUdevice device)
{
    (void)device;
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid, "SIMGPU", 6);
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

/* While the driver is asked about the one, another thread ends the other. */
static CUresult answers(CUevent event)
{
    asked_after += ended && event == of_other;
    if (event == of_one && !ended) {
        deferred_frees_context_ends(OTHER);
        ended = 1;
        deferred_frees_context_ended(OTHER, true);
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

int main(void)
{
    if (!active())
        return 2;
    driver.cuCtxGetCurrent = gets;
    driver.cuCtxPushCurrent_v2 = pushes;
    driver.cuCtxPopCurrent_v2 = pops;
    driver.cuCtxGetDevice = gets_device;
    driver.cuDeviceGetUuid_v2 = gets_uuid;
    driver.cuEventCreate = makes;
    driver.cuEventRecord = records;
    driver.cuEventDestroy_v2 = destroys;
    driver.cuEventQuery = answers;
    frees_in(OTHER, 1);
    frees_in(ONE, 2);
    deferred_frees_settle();
    printf("%d %llu\n", asked_after, (unsigned long long)ledger_held(ledger, 0));
    comes = 1;
    deferred_frees_settle();
    printf("%d %llu\n", asked_after, (unsigned long long)ledger_held(ledger, 0));
    return 0;
}
