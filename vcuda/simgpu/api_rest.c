/* Green contexts, pointers, occupancy: as little of each as programs need to get past them. */
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "sim_memory.h"

struct CUgreenCtx_st {
    CUcontext context;
    uint32_t device;
};

/* A green context keeps the device's primary context alive and takes no memory beside it. It has its own turn on the GPU,
 * where a real one shares. */
SIM_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                             unsigned int flags)
{
    (void)resources;
    (void)flags;
    SIM_ENTER(COST_CONTEXT);
    CUcontext primary;
    if (green == NULL || device < 0 || (uint32_t)device >= sim_seat.node->settings.devices) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUgreenCtx_st *made = calloc(1, sizeof *made);
    CUresult result = made == NULL ? CUDA_ERROR_OUT_OF_MEMORY : sim_primary_get((uint32_t)device, &primary);
    if (result == CUDA_SUCCESS) {
        made->device = (uint32_t)device;
        result = sim_context_part(&made->context, primary);
        if (result == CUDA_SUCCESS) {
            *green = made;
            return CUDA_SUCCESS;
        }
        sim_primary_drop((uint32_t)device, 0);
    }
    free(made);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    SIM_ENTER(COST_VIRTUAL);
    if (green == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = sim_context_destroy(green->context);
    sim_primary_drop(green->device, 0);
    free(green);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    SIM_ENTER(COST_QUERY);
    if (context == NULL || green == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *context = green->context;
    return CUDA_SUCCESS;
}

static CUresult attribute_of(void *value, CUpointer_attribute which, CUdeviceptr address)
{
    pthread_mutex_lock(&sim_process_lock);
    const struct sim_allocation *found = sim_allocation_within(address);
    CUresult result = found == NULL || value == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext *)value = found->context;
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned int *)value = CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            *(CUdeviceptr *)value = address;
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *(unsigned int *)value = found->kind == SIM_MANAGED;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *(int *)value = found->context == NULL ? 0 : (int)found->context->device;
            break;
        default:
            result = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address)
{
    SIM_ENTER(COST_QUERY);
    return attribute_of(value, which, address);
}

/* Of an address that is no memory of the driver's, what it is asked for stays zero, and that is no error. */
SIM_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **values,
                                                   CUdeviceptr address)
{
    SIM_ENTER(COST_QUERY);
    if (which == NULL || values == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < count; i++) {
        memset(values[i], 0, sizeof(unsigned int));
        attribute_of(values[i], which[i], address);
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    (void)device;
    (void)peer;
    SIM_ENTER(COST_QUERY);
    *can = 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int size,
                                                                        size_t shared)
{
    (void)shared;
    SIM_ENTER(COST_QUERY);
    if (blocks == NULL || function == NULL || size <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *blocks = size > 1024 ? 0 : 2048 / size;
    return CUDA_SUCCESS;
}
