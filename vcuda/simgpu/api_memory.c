/* Calls about plain device memory, pinned and managed memory, and what is left. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "capture.h"
#include "sim_memory.h"

/* Allocations and frees are potentially unsafe during a capture in global mode. */
static CUresult safe_context(CUcontext *context)
{
    CUresult result = sim_context_get(context);
    return result == CUDA_SUCCESS && sim_capture_forbids() ? sim_capture_spoil(NULL) : result;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, enum sim_memory kind)
{
    CUcontext context = NULL;
    CUresult result = safe_context(&context);
    uint64_t placed = 0;
    if (result == CUDA_SUCCESS) {
        result = address == NULL ? CUDA_ERROR_INVALID_VALUE : sim_allocate(context, bytes, kind, &placed);
    }
    if (result == CUDA_SUCCESS) {
        *address = placed;
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    SIM_ENTER(COST_MEMORY);
    return allocate(address, bytes, SIM_LINEAR);
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                               unsigned int element)
{
    SIM_ENTER(COST_MEMORY);
    if (pitch == NULL || (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t rounded = (width + 511) / 512 * 512;
    size_t bytes = 0;
    if (__builtin_mul_overflow(rounded, height, &bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pitch = rounded;
    return allocate(address, bytes, SIM_LINEAR);
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    SIM_ENTER(COST_VIRTUAL);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return allocate(address, bytes, SIM_MANAGED);
}

/* Waits for the context's work, as the driver does before it unmaps. */
SIM_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
    SIM_ENTER(COST_MEMORY);
    CUcontext context = NULL;
    CUresult result = safe_context(&context);
    if (result != CUDA_SUCCESS || address == 0) {
        return result;
    }
    sim_await_context(context);
    return sim_release(address, SIM_LINEAR);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *left, size_t *total)
{
    SIM_ENTER(COST_EVENT);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_view view = sim_lock(&sim_seat, context->device);
    if (left != NULL) {
        *left = sim_seat.node->settings.memory_bytes - view.device->used_bytes;
    }
    sim_unlock(&view);
    if (total != NULL) {
        *total = sim_seat.node->settings.memory_bytes;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    SIM_ENTER(COST_QUERY);
    pthread_mutex_lock(&sim_process_lock);
    const struct sim_allocation *found = sim_allocation_within(address);
    if (found != NULL && base != NULL) {
        *base = found->address;
    }
    if (found != NULL && bytes != NULL) {
        *bytes = found->bytes;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Addresses of 32 bits cannot name this device's memory: the oldest calls exist, and fail. */
SIM_EXPORT CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes)
{
    (void)address;
    (void)bytes;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 address)
{
    SIM_ENTER(COST_QUERY);
    return address == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width,
                                            unsigned int height, unsigned int element)
{
    (void)address;
    (void)pitch;
    (void)width;
    (void)height;
    (void)element;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT CUresult CUDAAPI cuMemGetInfo(unsigned int *left, unsigned int *total)
{
    size_t wide_left = 0;
    size_t wide_total = 0;
    CUresult result = cuMemGetInfo_v2(&wide_left, &wide_total);
    if (result == CUDA_SUCCESS && left != NULL) {
        *left = wide_left > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_left;
    }
    if (result == CUDA_SUCCESS && total != NULL) {
        *total = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned int)wide_total;
    }
    return result;
}

/* Pinned host memory is ordinary memory here, with its size in front so that it can be freed. */
static CUresult host_memory(void **address, size_t bytes)
{
    if (address == NULL || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t whole = bytes + 4096;
    uint64_t *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = whole;
    *address = (char *)memory + 4096;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void **address, size_t bytes)
{
    SIM_ENTER(COST_VIRTUAL);
    return host_memory(address, bytes);
}

SIM_EXPORT CUresult CUDAAPI cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    (void)flags;
    SIM_ENTER(COST_VIRTUAL);
    return host_memory(address, bytes);
}

SIM_EXPORT CUresult CUDAAPI cuMemFreeHost(void *address)
{
    SIM_ENTER(COST_VIRTUAL);
    if (address == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *memory = (char *)address - 4096;
    munmap(memory, *(uint64_t *)memory);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned int flags)
{
    SIM_ENTER(COST_QUERY);
    if (device == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags)
{
    (void)flags;
    SIM_ENTER(COST_VIRTUAL);
    return host == NULL || bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemHostUnregister(void *host)
{
    SIM_ENTER(COST_VIRTUAL);
    return host == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
    (void)advice;
    (void)device;
    SIM_ENTER(COST_QUERY);
    return address == 0 || bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
