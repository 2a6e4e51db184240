/* Green contexts, multicast, pointers, occupancy: as little of each as programs need to get past them. */
#include <stdlib.h>

#include "context.h"
#include "memory.h"

struct CUgreenCtx_st {
    CUcontext context;
};

/* A green context is a context here: it has its own memory and its own turn on the GPU, where a real one shares. */
SIM_EXPORT CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device,
                                             unsigned int flags)
{
    (void)resources;
    (void)flags;
    SIM_ENTER(COST_CONTEXT);
    struct CUgreenCtx_st *made = green == NULL ? NULL : calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_context_create(&made->context, 0, device);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *green = made;
    return sim_context_pop(NULL);
}

SIM_EXPORT CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    SIM_ENTER(COST_VIRTUAL);
    if (green == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = sim_context_destroy(green->context);
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

/* No multicast between simulated devices: programs find that out at the first call. */
SIM_EXPORT CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    (void)handle;
    (void)properties;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    (void)handle;
    (void)device;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                               unsigned long long flags)
{
    (void)handle;
    (void)offset;
    (void)memory;
    (void)memory_offset;
    (void)bytes;
    (void)flags;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                                                size_t bytes, unsigned long long flags)
{
    (void)handle;
    (void)offset;
    (void)address;
    (void)bytes;
    (void)flags;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                              size_t bytes)
{
    (void)handle;
    (void)device;
    (void)offset;
    (void)bytes;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_SUPPORTED;
}

SIM_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr address)
{
    SIM_ENTER(COST_QUERY);
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
