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

/* Whether the range is mappings that were noted, each whole, without a gap. */
static bool is_of_whole_mappings(CUdeviceptr pointer, CUdeviceptr end)
{
    struct allocation mapping;
    while (pointer < end && allocations_find(&process()->allocations, KIND_MAPPING, pointer, &mapping) &&
           mapping.extent <= end - pointer)
        pointer += mapping.extent;
    return pointer == end;
}

/* A mapping that ends, and its reference to physical memory. */
struct unmapping {
    struct allocation mapping, physical;
    bool ours;
};

/* Before the driver unmaps what begins here; false: no mapping that was noted. */
static bool unmapping(CUdeviceptr pointer, struct unmapping *one)
{
    if (!allocations_take(&process()->allocations, KIND_MAPPING, pointer, &one->mapping))
        return false;
    one->ours = physical_dropping(one->mapping.owner, &one->physical);
    return true;
}

static void unmapped(CUresult result, const struct unmapping *one)
{
    if (result != CUDA_SUCCESS)
        allocations_put(&process()->allocations, &one->mapping);
    physical_dropped(result, one->ours, &one->physical);
}

/* Of a range in which something else lies the driver decides as a whole. */
static CUresult unmap_as_one(CUdeviceptr pointer, size_t size)
{
    struct unmapping one;
    CUresult result = REAL(cuMemUnmap)(pointer, size);
    for (CUdeviceptr at = pointer; result == CUDA_SUCCESS && at < pointer + size && unmapping(at, &one);
         at += one.mapping.extent)
        unmapped(result, &one);
    return result;
}

/* The range may cover several mappings, each whole. They are unmapped one by one. */
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    struct unmapping one;
    PASS_UNLESS_ACTIVE(cuMemUnmap, pointer, size);
    CUdeviceptr end = pointer + size;
    if (size == 0 || !is_of_whole_mappings(pointer, end))
        return unmap_as_one(pointer, size);
    CUresult result = CUDA_SUCCESS;
    for (; result == CUDA_SUCCESS && pointer < end && unmapping(pointer, &one); pointer += one.mapping.extent) {
        result = REAL(cuMemUnmap)(pointer, one.mapping.extent);
        unmapped(result, &one);
    }
    return result == CUDA_SUCCESS && pointer < end ? unmap_as_one(pointer, end - pointer) : result;
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
