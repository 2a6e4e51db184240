/* Multicast objects of one device: they keep what is bound to them, and take no memory of their own. */
#include <stdlib.h>

#include "handle.h"
#include "sim_memory.h"

#define OBJECTS 16
#define BINDINGS 64
#define HANDLE 0x4d43000000000000ULL /* apart from the handles of physical memory */

/* Guarded by sim_process_lock. */
static struct {
    int references; /* handles and mappings; 0: free */
    size_t size;
    struct {
        size_t offset; /* plus one; 0: free */
        CUmemGenericAllocationHandle memory;
    } bindings[BINDINGS];
} objects[OBJECTS];

static int number_of(CUmemGenericAllocationHandle handle)
{
    uint64_t number = handle - HANDLE;
    return handle >= HANDLE && number < OBJECTS && objects[number].references != 0 ? (int)number : -1;
}

int sim_is_multicast(CUmemGenericAllocationHandle handle)
{
    return handle >= HANDLE && handle - HANDLE < OBJECTS;
}

/* With the last reference goes all that is bound. */
static CUresult refer(CUmemGenericAllocationHandle handle, int change, uint64_t *bytes)
{
    pthread_mutex_lock(&sim_process_lock);
    int number = number_of(handle);
    if (number >= 0) {
        objects[number].references += change;
        if (bytes != NULL) {
            *bytes = objects[number].size;
        }
    }
    for (int i = 0; number >= 0 && objects[number].references == 0 && i < BINDINGS; i++) {
        if (objects[number].bindings[i].offset != 0) {
            objects[number].bindings[i].offset = 0;
            sim_physical_ref(sim_physical_unpack(objects[number].bindings[i].memory), -1, NULL);
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return number >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_reference(CUmemGenericAllocationHandle handle, int change, uint64_t *bytes)
{
    return sim_is_multicast(handle) ? refer(handle, change, bytes)
           : sim_is_on_host(handle) ? sim_host_refer(handle, change, bytes)
                                    : sim_physical_ref(sim_physical_unpack(handle), change, bytes);
}

/* The recommended size is that of a large GPU's. */
SIM_EXPORT CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                                      CUmulticastGranularity_flags option)
{
    SIM_ENTER(COST_QUERY);
    if (granularity == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = option == CU_MULTICAST_GRANULARITY_MINIMUM ? SIM_GRANULE : 256 * SIM_GRANULE;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *properties)
{
    SIM_ENTER(COST_VIRTUAL);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (handle == NULL || properties == NULL || properties->numDevices != 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    for (unsigned int i = 0; i < OBJECTS && result != CUDA_SUCCESS; i++) {
        if (objects[i].references == 0) {
            objects[i].references = 1;
            objects[i].size = properties->size;
            *handle = HANDLE + i;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return number_of(handle) < 0 || device != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult bind(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory)
{
    int number = number_of(handle);
    for (int i = 0; number >= 0 && i < BINDINGS; i++) {
        if (objects[number].bindings[i].offset == 0) {
            CUresult result = sim_physical_ref(sim_physical_unpack(memory), 1, NULL);
            if (result == CUDA_SUCCESS) {
                objects[number].bindings[i].offset = offset + 1;
                objects[number].bindings[i].memory = memory;
            }
            return result;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset,
                                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                               unsigned long long flags)
{
    SIM_ENTER(COST_VIRTUAL);
    if (memory_offset != 0 || bytes == 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    CUresult result = bind(handle, offset, memory);
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t offset, CUdeviceptr address,
                                                size_t bytes, unsigned long long flags)
{
    SIM_ENTER(COST_VIRTUAL);
    pthread_mutex_lock(&sim_process_lock);
    const struct sim_allocation *found = sim_allocation_within(address);
    int mapped = found != NULL && found->kind == SIM_MAPPED && bytes != 0 && flags == 0;
    CUresult result = mapped ? bind(handle, offset, found->handle) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t offset,
                                              size_t bytes)
{
    (void)device;
    (void)bytes;
    SIM_ENTER(COST_VIRTUAL);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_process_lock);
    int number = number_of(handle);
    for (int i = 0; number >= 0 && i < BINDINGS; i++) {
        if (objects[number].bindings[i].offset == offset + 1) {
            objects[number].bindings[i].offset = 0;
            result = sim_physical_ref(sim_physical_unpack(objects[number].bindings[i].memory), -1, NULL);
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}
