/* hooks_context.c: a context takes hundreds of MiB that no allocation shows; it is charged before it exists. */
#include "granule.h"
#include "hook.h"
#include "linear.h"
#include "pacer.h"

/* What a bare context takes when the node has not measured it (it varies from 200 to 500 MiB by model). */
#define CONTEXT_BYTES (256ull << 20)

static uint64_t context_bytes(int index)
{
    uint64_t known = config.devices[index].context_bytes;
    return known != 0 ? known : CONTEXT_BYTES;
}

EXPORT CUresult cuInit(unsigned int flags)
{
    if (!driver_ready() || REAL(cuInit) == NULL)
        return CUDA_ERROR_NO_DEVICE;
    if (state_mode() == MODE_REFUSED)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    return REAL(cuInit)(flags);
}

/* Before a context: its index, or the error to answer. */
static CUresult reserve(CUdevice ordinal, int *index)
{
    *index = device_index(ordinal);
    if (*index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return charge(*index, context_bytes(*index)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* After it: remembered, or given back. */
static CUresult settle(CUresult result, int index, const CUcontext *context)
{
    if (result != CUDA_SUCCESS) {
        discharge(index, context_bytes(index));
        return result;
    }
    remember(KIND_CONTEXT, (uint64_t)(uintptr_t)*context, index, context_bytes(index), NULL, 0);
    pacer_context_made(index);
    return result;
}

#define CREATES(name, parameters, ...)                                      \
    EXPORT CUresult name parameters                                         \
    {                                                                       \
        int index;                                                          \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                              \
        CUresult result = reserve(device, &index);                          \
        if (result != CUDA_SUCCESS)                                         \
            return result;                                                  \
        return settle(REAL(name)(__VA_ARGS__), index, context);             \
    }

CREATES(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v3,
        (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device), context,
        affinity, count, flags, device)
CREATES(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device),
        context, parameters, flags, device)

/* All that dies with a context, taken before it does. */
struct estate {
    int index;
    uint64_t bytes;
    uint64_t exported; /* of these, what others may hold */
};

/* `index` where it is known; otherwise that of the context's own row. */
static struct estate begin_end(CUcontext context, int index)
{
    struct estate estate = {index, 0, 0};
    struct allocation allocation;
    pacer_context_ends(context);
    device_context_ends();
    while (allocations_take_of_context(&process()->allocations, (uint64_t)(uintptr_t)context, &allocation)) {
        estate.bytes += allocation.bytes;
        estate.exported += allocation_exported(&allocation) ? allocation.bytes : 0;
        if (allocation.kind == KIND_BLOCK)
            linear_block_lost(allocation.device);
        if (allocation.kind == KIND_IMPORT)
            opened_of_others(-(int)allocation.count);
    }
    if (allocations_take(&process()->allocations, KIND_CONTEXT, (uint64_t)(uintptr_t)context, &allocation)) {
        estate.bytes += allocation.bytes;
        estate.index = allocation.device;
    }
    estate.bytes += pools_forget_context(context, &estate.exported) + graph_memory_forget_context(context);
    loosen(estate.index, estate.bytes);
    return estate;
}

/* When the driver refuses to end it (it was no context), there was nothing to take. */
static CUresult ended(CUresult result, struct estate estate)
{
    if (result == CUDA_SUCCESS) {
        discharge(estate.index, estate.bytes - estate.exported);
        orphan(estate.index, estate.exported);
    } else {
        confirm(estate.index, estate.bytes);
    }
    return result;
}

#define DESTROYS(name)                                                      \
    EXPORT CUresult name(CUcontext context)                                 \
    {                                                                       \
        PASS_UNLESS_ACTIVE(name, context);                                  \
        struct estate estate = begin_end(context, 0);                          \
        return ended(REAL(name)(context), estate);                          \
    }

DESTROYS(cuCtxDestroy)
DESTROYS(cuCtxDestroy_v2)
DESTROYS(cuCtxDetach)

static CUresult retain_primary(CUcontext *context, CUdevice device)
{
    unsigned int flags;
    int alive = 0, index = device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    REAL(cuDevicePrimaryCtxGetState)(device, &flags, &alive);
    bool first = !alive || us->primary[index] == NULL;
    CUresult result = first ? reserve(device, &index) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
        if (first)
            result = settle(result, index, context);
        if (first && result == CUDA_SUCCESS) {
            us->primary[index] = *context;
            us->retains[index] = 0;
        }
        us->retains[index] += result == CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&us->contexts);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuDevicePrimaryCtxRetain, context, device);
    return retain_primary(context, device);
}

/* The last release ends the primary context, and so does a reset, whoever else retains it. */
static CUresult let_go(CUdevice device, bool whoever, __typeof__(cuDevicePrimaryCtxRelease_v2) *driver_does)
{
    struct estate estate = {0, 0, 0};
    int index = device_index(device);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    bool ends = us->primary[index] != NULL && (whoever || us->retains[index] == 1);
    if (ends)
        estate = begin_end(us->primary[index], index);
    CUresult result = ended(driver_does(device), estate);
    if (result == CUDA_SUCCESS && us->retains[index] != 0)
        us->retains[index]--;
    if (result == CUDA_SUCCESS && ends)
        us->primary[index] = NULL;
    pthread_mutex_unlock(&us->contexts);
    return result;
}

#define LETS_GO(name, whoever)                                              \
    EXPORT CUresult name(CUdevice device)                                   \
    {                                                                       \
        PASS_UNLESS_ACTIVE(name, device);                                   \
        return let_go(device, whoever, REAL(name));                         \
    }

LETS_GO(cuDevicePrimaryCtxRelease, false)
LETS_GO(cuDevicePrimaryCtxRelease_v2, false)
LETS_GO(cuDevicePrimaryCtxReset, true)
LETS_GO(cuDevicePrimaryCtxReset_v2, true)

/* A green context is a part of the primary one, which the driver keeps alive for it: so do we, and the charge is that
 * one's. What the part takes beyond, the node sees. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    CUcontext primary, context = NULL;
    PASS_UNLESS_ACTIVE(cuGreenCtxCreate, green, resources, device, flags);
    CUresult result = retain_primary(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
    if (result != CUDA_SUCCESS) {
        let_go(device, false, REAL(cuDevicePrimaryCtxRelease_v2));
        return result;
    }
    REAL(cuCtxFromGreenCtx)(&context, *green);
    struct allocation row = {.key = (uint64_t)(uintptr_t)*green,
                             .owner = (uint64_t)(uintptr_t)context,
                             .extent = (uint64_t)device,
                             .kind = KIND_GREEN,
                             .count = 1};
    allocations_put(&process()->allocations, &row);
    pacer_context_made(device_index(device));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct allocation row;
    PASS_UNLESS_ACTIVE(cuGreenCtxDestroy, green);
    bool ours = allocations_take(&process()->allocations, KIND_GREEN, (uint64_t)(uintptr_t)green, &row);
    struct estate estate = {0, 0, 0};
    if (ours)
        estate = begin_end((CUcontext)(uintptr_t)row.owner, device_index((CUdevice)row.extent));
    CUresult result = ended(REAL(cuGreenCtxDestroy)(green), estate);
    if (ours && result == CUDA_SUCCESS)
        let_go((CUdevice)row.extent, false, REAL(cuDevicePrimaryCtxRelease_v2));
    return result;
}

/* The heap that kernels allocate from, and the buffer that they print to, are device memory. The stack is, too, but
 * the driver decides how much: the node sees it. */
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    int index;
    struct allocation old = {0};
    PASS_UNLESS_ACTIVE(cuCtxSetLimit, limit, value);
    if ((limit != CU_LIMIT_MALLOC_HEAP_SIZE && limit != CU_LIMIT_PRINTF_FIFO_SIZE) || !current_device(&context, &index))
        return REAL(cuCtxSetLimit)(limit, value);
    uint64_t key = (uint64_t)(uintptr_t)context ^ (uint64_t)limit, bytes = granule_up(value, GRANULE);
    if (bytes < value || !charge(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    bool had = freeing(KIND_LIMIT, key, &old);
    CUresult result = REAL(cuCtxSetLimit)(limit, value);
    freed(result, had, &old);
    if (result == CUDA_SUCCESS)
        remember(KIND_LIMIT, key, index, bytes, context, 0);
    else
        discharge(index, bytes);
    return result;
}
