/* Calls about contexts. */
#include "capture.h"
#include "context.h"
#include "pool.h"

static int known(CUdevice device)
{
    return device >= 0 && (uint32_t)device < sim_seat.node->settings.devices;
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    SIM_ENTER(COST_CONTEXT);
    return sim_context_create(context, flags, device);
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    SIM_ENTER(COST_CONTEXT);
    return sim_context_create(context, flags, device);
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags,
                                           CUdevice device)
{
    (void)affinity;
    (void)count;
    SIM_ENTER(COST_CONTEXT);
    return sim_context_create(context, flags, device);
}

SIM_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                                           CUdevice device)
{
    (void)parameters;
    SIM_ENTER(COST_CONTEXT);
    return sim_context_create(context, flags, device);
}

SIM_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext context)
{
    SIM_ENTER(COST_VIRTUAL);
    return sim_context_destroy(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context)
{
    SIM_ENTER(COST_VIRTUAL);
    return sim_context_destroy(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxAttach(CUcontext *context, unsigned int flags)
{
    SIM_ENTER(COST_QUERY);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : sim_context_attach(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxDetach(CUcontext context)
{
    SIM_ENTER(COST_VIRTUAL);
    return sim_context_detach(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxPushCurrent(CUcontext context)
{
    SIM_ENTER(COST_QUERY);
    return sim_context_push(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context)
{
    SIM_ENTER(COST_QUERY);
    return sim_context_push(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context)
{
    SIM_ENTER(COST_QUERY);
    return sim_context_pop(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context)
{
    SIM_ENTER(COST_QUERY);
    return sim_context_pop(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    SIM_ENTER(COST_QUERY);
    return sim_context_set(context);
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    SIM_ENTER(COST_QUERY);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = sim_current();
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    SIM_ENTER(COST_QUERY);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS) {
        *device = (CUdevice)context->device;
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags)
{
    SIM_ENTER(COST_QUERY);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS) {
        *flags = context->flags;
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    (void)context;
    SIM_ENTER(COST_QUERY);
    *version = 3020;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_ENTER(COST_QUERY);
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuCtxSynchronize(void)
{
    SIM_ENTER(COST_SYNC);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS && sim_capture_forbids()) {
        result = sim_capture_spoil(NULL);
    }
    if (result == CUDA_SUCCESS) {
        sim_await_context(context);
        sim_pools_release();
        result = sim_has_failed() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
    }
    return result;
}

/* The heap of device-side malloc and the stacks of all threads that can be on the device are taken from its memory; other limits
 * only remember their value. What a context has of stacks from the beginning is in its cost. */
static uint64_t taken_for(CUlimit limit, uint64_t value)
{
    uint64_t bytes = limit == CU_LIMIT_MALLOC_HEAP_SIZE ? value : 0;
    if (limit == CU_LIMIT_STACK_SIZE && value > SIM_STACK_BYTES) {
        bytes = (value - SIM_STACK_BYTES) * SIM_MULTIPROCESSORS * SIM_RESIDENT_THREADS;
    }
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

SIM_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    SIM_ENTER(COST_MEMORY);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((unsigned)limit >= 16) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    result = sim_charge(context, taken_for(limit, value));
    if (result == CUDA_SUCCESS) {
        sim_discharge(context, taken_for(limit, context->limits[limit]));
    }
    if (result == CUDA_SUCCESS) {
        context->limits[limit] = value;
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit)
{
    SIM_ENTER(COST_QUERY);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS && (unsigned)limit >= 16) {
        result = CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    if (result == CUDA_SUCCESS) {
        *value = context->limits[limit];
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    unsigned int flags = 0;
    int active = 0;
    SIM_ENTER(0);
    if (context == NULL || !known(device)) {
        return context == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    sim_primary_state((uint32_t)device, &flags, &active);
    sim_call_add_cost(&sim_call_, active ? COST_QUERY : COST_CONTEXT);
    return sim_primary_get((uint32_t)device, context);
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return known(device) ? sim_primary_drop((uint32_t)device, 0) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return known(device) ? sim_primary_drop((uint32_t)device, 0) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device)
{
    SIM_ENTER(COST_VIRTUAL);
    return known(device) ? sim_primary_drop((uint32_t)device, 1) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    SIM_ENTER(COST_VIRTUAL);
    return known(device) ? sim_primary_drop((uint32_t)device, 1) : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    (void)flags;
    SIM_ENTER(COST_QUERY);
    return known(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    (void)flags;
    SIM_ENTER(COST_QUERY);
    return known(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    SIM_ENTER(COST_QUERY);
    if (!known(device) || flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_primary_state((uint32_t)device, flags, active);
}
