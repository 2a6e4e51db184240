/* hook_multicast.c: an object takes no memory of its own, and keeps what is bound to it. It is made, referred to and
 * released as physical memory is, which charges nothing for it. */
#include "hooks/hook.h"
#include "memory/multicast.h"
#include "memory/physical.h"

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *object, const CUmulticastObjectProp *properties)
{
    PASS_UNLESS_ACTIVE(cuMulticastCreate, object, properties);
    CUresult result = REAL(cuMulticastCreate)(object, properties);
    if (result == CUDA_SUCCESS)
        physical_made(*object, 0, 0, ORIGIN_MULTICAST);
    return result;
}

/* A device that the container was not given takes part in nothing. */
EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuMulticastAddDevice, object, device);
    return device_index(device) < 0 ? device_refusal(device) : REAL(cuMulticastAddDevice)(object, device);
}

/* What is recommended for a large GPU may be more than the slice has: programs make their buffers of multiples of it. */
EXPORT CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *properties,
                                          CUmulticastGranularity_flags option)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMulticastGetGranularity, granularity, properties, option);
    CUresult result = REAL(cuMulticastGetGranularity)(granularity, properties, option);
    if (result == CUDA_SUCCESS && option == CU_MULTICAST_GRANULARITY_RECOMMENDED && current_device(&context, &index) &&
        *granularity > memory_limit(index) / 2)
        result = REAL(cuMulticastGetGranularity)(granularity, properties, CU_MULTICAST_GRANULARITY_MINIMUM);
    return result;
}

/* The handle and the device of the memory that is mapped there; asked for, and given back. */
static bool mapped_at(CUdeviceptr pointer, struct binding *binding)
{
    CUmemAllocationProp properties;
    if (pointer != 0 && REAL(cuMemRetainAllocationHandle)(&binding->physical, (void *)(uintptr_t)pointer) != CUDA_SUCCESS)
        return false;
    bool found = REAL(cuMemGetAllocationPropertiesFromHandle)(&properties, binding->physical) == CUDA_SUCCESS;
    if (found)
        device_of_location(&properties.location, &binding->ordinal);
    if (pointer != 0)
        REAL(cuMemRelease)(binding->physical);
    return found;
}

/* `pointer` is 0 where the memory is named by its handle. */
static CUresult bound(CUresult result, struct binding binding, CUdeviceptr pointer)
{
    if (result == CUDA_SUCCESS && mapped_at(pointer, &binding))
        multicast_bound(&binding);
    return result;
}

typedef CUmemGenericAllocationHandle handle_of;

#define BINDS(name, handle, pointer, parameters, ...)                                                                  \
    EXPORT CUresult name parameters                                                                                    \
    {                                                                                                                  \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                                                                         \
        return bound(REAL(name)(__VA_ARGS__),                                                                          \
                     (struct binding){.object = object, .physical = handle, .offset = offset, .size = size}, pointer); \
    }

BINDS(cuMulticastBindMem, from, 0,
      (handle_of object, size_t offset, handle_of from, size_t from_offset, size_t size, unsigned long long flags), object,
      offset, from, from_offset, size, flags)
BINDS(cuMulticastBindMem_v2, from, 0,
      (handle_of object, CUdevice device, size_t offset, handle_of from, size_t from_offset, size_t size,
       unsigned long long flags),
      object, device, offset, from, from_offset, size, flags)
BINDS(cuMulticastBindAddr, 0, from, (handle_of object, size_t offset, CUdeviceptr from, size_t size, unsigned long long flags),
      object, offset, from, size, flags)
BINDS(cuMulticastBindAddr_v2, 0, from,
      (handle_of object, CUdevice device, size_t offset, CUdeviceptr from, size_t size, unsigned long long flags), object,
      device, offset, from, size, flags)

/* The range may cover several bindings, each whole. */
EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t size)
{
    PASS_UNLESS_ACTIVE(cuMulticastUnbind, object, device, offset, size);
    uint64_t at = offset, left = size;
    CUresult result = multicast_unbind(object, device, &at, &left);
    return result == CUDA_SUCCESS && (left != 0 || size == 0) ? REAL(cuMulticastUnbind)(object, device, at, left) : result;
}
