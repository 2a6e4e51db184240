/* hook_virtual.c: physical memory of its own right. It is charged to its maker until it has no reference: handles,
 * mappings and bindings of this process are counted here. What descriptors or other processes hold goes to the container's
 * orphans, which end when the node sees the driver's figure fall. Memory under sparse arrays goes there, too: the shim cannot
 * see when a stream releases it. */
#include "hooks/hook.h"
#include "memory/physical.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemCreate, handle, size, properties, flags);
    CUdevice ordinal;
    if (handle == NULL || properties == NULL || !device_of_location(&properties->location, &ordinal))
        return REAL(cuMemCreate)(handle, size, properties, flags);
    int index = device_index(ordinal);
    if (index < 0)
        return device_refusal(ordinal);
    if (!charge(index, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result == CUDA_SUCCESS)
        physical_made(*handle, index, size, ORIGIN_MADE);
    else
        discharge(index, size);
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemRelease, handle);
    bool ours = physical_dropping(handle, &physical);
    CUresult result = REAL(cuMemRelease)(handle);
    physical_dropped(result, ours, &physical);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemRetainAllocationHandle, handle, address);
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        allocations_count(&process()->allocations, KIND_PHYSICAL, *handle, 1, &physical);
    return result;
}

/* Mappings of the host's memory are noted, too: one call may unmap them together with others. */
EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemMap, pointer, size, offset, handle, flags);
    CUresult result = REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        bool known = allocations_count(&process()->allocations, KIND_PHYSICAL, handle, 1, &physical) > 0;
        struct allocation mapping = {
            .key = pointer, .owner = known ? handle : 0, .extent = size, .kind = KIND_MAPPING, .count = 1};
        allocations_put(&process()->allocations, &mapping);
    }
    return result;
}

/* Whether a mapping goes on behind the range, of which the driver unmaps nothing then. */
static bool cuts_a_mapping(CUdeviceptr pointer, CUdeviceptr end)
{
    struct allocation mapping;
    while (pointer < end && allocations_find(&process()->allocations, KIND_MAPPING, pointer, &mapping)) {
        if (mapping.extent > end - pointer)
            return true;
        pointer += mapping.extent;
    }
    return false;
}

/* The range may cover several mappings, each whole. They are unmapped one by one. */
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    struct allocation mapping, physical;
    PASS_UNLESS_ACTIVE(cuMemUnmap, pointer, size);
    CUdeviceptr end = pointer + size;
    if (cuts_a_mapping(pointer, end))
        return REAL(cuMemUnmap)(pointer, size);
    while (pointer < end && allocations_take(&process()->allocations, KIND_MAPPING, pointer, &mapping)) {
        bool ours = physical_dropping(mapping.owner, &physical);
        CUresult result = REAL(cuMemUnmap)(pointer, mapping.extent);
        if (result != CUDA_SUCCESS)
            allocations_put(&process()->allocations, &mapping);
        physical_dropped(result, ours, &physical);
        if (result != CUDA_SUCCESS)
            return result;
        pointer += mapping.extent;
    }
    return pointer < end || size == 0 ? REAL(cuMemUnmap)(pointer, end - pointer) : CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemExportToShareableHandle, shareable, handle, type, flags);
    CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS)
        shared_with_others(KIND_PHYSICAL, handle);
    return result;
}

/* The exporter pays. If this process exported it, the handle that it gets is one more reference to its own. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    PASS_UNLESS_ACTIVE(cuMemImportFromShareableHandle, handle, shareable, type);
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result == CUDA_SUCCESS)
        physical_imported(*handle);
    return result;
}

#define MAPS_ARRAYS(name)                                                           \
    EXPORT CUresult name(CUarrayMapInfo *list, unsigned int count, CUstream stream) \
    {                                                                               \
        PASS_UNLESS_ACTIVE(name, list, count, stream);                              \
        CUresult result = REAL(name)(list, count, stream);                          \
        for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++)          \
            if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)              \
                shared_with_others(KIND_PHYSICAL, list[i].memHandle.memHandle);     \
        return result;                                                              \
    }

MAPS_ARRAYS(cuMemMapArrayAsync)
MAPS_ARRAYS(cuMemMapArrayAsync_ptsz)
