/* hooks_virtual.c: physical memory of its own right. It is charged to its maker until nobody refers to it: handles and
 * mappings of this process are counted here; what descriptors or other processes hold is left to the container's
 * orphans, which end when the node sees the driver's figure fall. So is what arrays and multicast objects refer to: when
 * a stream or another GPU lets go of it is not ours to see. */
#include "hook.h"
#include "orphans.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemCreate, handle, size, properties, flags);
    if (handle == NULL || properties == NULL || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return REAL(cuMemCreate)(handle, size, properties, flags);
    int index = device_index(properties->location.id);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!charge(index, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemCreate)(handle, size, properties, flags);
    if (result == CUDA_SUCCESS)
        remember(KIND_PHYSICAL, *handle, index, size, NULL, 0);
    else
        discharge(index, size);
    return result;
}

/* One reference fewer, before the driver drops it; the charge is loose until `dropped` knows whether it was the last. */
static bool dropping(uint64_t handle, struct allocation *physical)
{
    bool ours = allocations_find(&process()->allocations, KIND_PHYSICAL, handle, physical);
    if (ours)
        loosen(physical->device, physical->bytes);
    return ours;
}

static void dropped(CUresult result, uint64_t handle, bool ours, const struct allocation *physical)
{
    struct allocation now;
    if (!ours)
        return;
    bool last = result == CUDA_SUCCESS &&
                allocations_count(&process()->allocations, KIND_PHYSICAL, handle, -1, &now) == 0;
    if (!last)
        confirm(physical->device, physical->bytes);
    else if (now.extent == 0)
        discharge(physical->device, physical->bytes);
    else
        orphan(physical->device, physical->bytes); /* exported: somebody may hold it still */
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemRelease, handle);
    bool ours = dropping(handle, &physical);
    CUresult result = REAL(cuMemRelease)(handle);
    dropped(result, handle, ours, &physical);
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

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemMap, pointer, size, offset, handle, flags);
    CUresult result = REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS &&
        allocations_count(&process()->allocations, KIND_PHYSICAL, handle, 1, &physical) > 0) {
        struct allocation mapping = {
            .key = pointer, .owner = handle, .extent = size, .device = physical.device, .kind = KIND_MAPPING, .count = 1};
        allocations_put(&process()->allocations, &mapping);
    }
    return result;
}

/* The range may cover several mappings, each whole. They are unmapped one by one. */
EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    struct allocation mapping, physical;
    PASS_UNLESS_ACTIVE(cuMemUnmap, pointer, size);
    CUdeviceptr end = pointer + size;
    while (pointer < end && allocations_take(&process()->allocations, KIND_MAPPING, pointer, &mapping)) {
        bool ours = dropping(mapping.owner, &physical);
        CUresult result = REAL(cuMemUnmap)(pointer, mapping.extent);
        if (result != CUDA_SUCCESS)
            allocations_put(&process()->allocations, &mapping);
        dropped(result, mapping.owner, ours, &physical);
        if (result != CUDA_SUCCESS)
            return result;
        pointer += mapping.extent;
    }
    return pointer < end ? REAL(cuMemUnmap)(pointer, end - pointer) : CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    struct allocation physical;
    PASS_UNLESS_ACTIVE(cuMemExportToShareableHandle, shareable, handle, type, flags);
    CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    if (result == CUDA_SUCCESS && allocations_find(&process()->allocations, KIND_PHYSICAL, handle, &physical))
        allocations_mark(&process()->allocations, KIND_PHYSICAL, handle, 1);
    return result;
}

/* Somebody may hold it after its last handle and mapping are gone. */
static void held_elsewhere(CUresult result, CUmemGenericAllocationHandle handle)
{
    if (result == CUDA_SUCCESS)
        allocations_mark(&process()->allocations, KIND_PHYSICAL, handle, 1);
}

#define MAPS_ARRAYS(name)                                                                                    \
    EXPORT CUresult name(CUarrayMapInfo *list, unsigned int count, CUstream stream)                          \
    {                                                                                                        \
        PASS_UNLESS_ACTIVE(name, list, count, stream);                                                       \
        CUresult result = REAL(name)(list, count, stream);                                                   \
        for (unsigned int i = 0; list != NULL && i < count; i++)                                             \
            if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)                                       \
                held_elsewhere(result, list[i].memHandle.memHandle);                                         \
        return result;                                                                                       \
    }

MAPS_ARRAYS(cuMemMapArrayAsync)
MAPS_ARRAYS(cuMemMapArrayAsync_ptsz)

/* The physical memory whose mapping begins here; of one that begins before, its handle is asked for and given back. */
static CUmemGenericAllocationHandle mapped_at(CUdeviceptr pointer)
{
    struct allocation mapping;
    CUmemGenericAllocationHandle handle = 0;
    if (allocations_find(&process()->allocations, KIND_MAPPING, pointer, &mapping))
        return mapping.owner;
    if (REAL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)pointer) == CUDA_SUCCESS)
        REAL(cuMemRelease)(handle);
    return handle;
}

#define BINDS(name, memory, parameters, ...)                                                                 \
    EXPORT CUresult name parameters                                                                          \
    {                                                                                                        \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                                                               \
        CUresult result = REAL(name)(__VA_ARGS__);                                                           \
        held_elsewhere(result, memory);                                                                      \
        return result;                                                                                       \
    }

typedef CUmemGenericAllocationHandle handle_of;

BINDS(cuMulticastBindMem, from,
      (handle_of object, size_t offset, handle_of from, size_t from_offset, size_t size, unsigned long long flags), object,
      offset, from, from_offset, size, flags)
BINDS(cuMulticastBindMem_v2, from,
      (handle_of object, CUdevice device, size_t offset, handle_of from, size_t from_offset, size_t size,
       unsigned long long flags),
      object, device, offset, from, from_offset, size, flags)
BINDS(cuMulticastBindAddr, mapped_at(from),
      (handle_of object, size_t offset, CUdeviceptr from, size_t size, unsigned long long flags), object, offset, from,
      size, flags)
BINDS(cuMulticastBindAddr_v2, mapped_at(from),
      (handle_of object, CUdevice device, size_t offset, CUdeviceptr from, size_t size, unsigned long long flags), object,
      device, offset, from, size, flags)
