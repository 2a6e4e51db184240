/* hook_report.c: the program sees a GPU of the size of its slice. */
#include "hooks/hook.h"
#include "memory/deferred_frees.h"

static size_t least(size_t one, size_t other)
{
    return one < other ? one : other;
}

/* What is free for this container: of its limit, and never more than the device has. */
static void to_slice(size_t *free, size_t *total)
{
    CUcontext context;
    int index;
    if (!current_device(&context, &index))
        return;
    deferred_frees_settle();
    want_sample(index);
    uint64_t limit = memory_limit(index), held = memory_held(index);
    *free = least(*free, held < limit ? limit - held : 0);
    *total = least(*total, limit);
}

/* The driver takes NULL for what the program does not want to know. */
EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    PASS_UNLESS_ACTIVE(cuMemGetInfo_v2, free, total);
    size_t free_here = 0, total_here = 0;
    CUresult result = REAL(cuMemGetInfo_v2)(&free_here, &total_here);
    if (result != CUDA_SUCCESS)
        return result;
    to_slice(&free_here, &total_here);
    if (free != NULL)
        *free = free_here;
    if (total != NULL)
        *total = total_here;
    return result;
}

/* The 32-bit forms of CUDA 3: the largest number means "or more". */
static unsigned int narrow(size_t value)
{
    return value > UINT32_MAX ? UINT32_MAX : (unsigned int)value;
}

EXPORT CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    PASS_UNLESS_ACTIVE(cuMemGetInfo, free, total);
    unsigned int narrow_free = 0, narrow_total = 0;
    CUresult result = REAL(cuMemGetInfo)(&narrow_free, &narrow_total);
    if (result != CUDA_SUCCESS)
        return result;
    size_t free_here = narrow_free, total_here = narrow_total;
    to_slice(&free_here, &total_here);
    if (free != NULL)
        *free = narrow(free_here);
    if (total != NULL)
        *total = narrow(total_here);
    return result;
}

static size_t slice_of(CUdevice device, size_t total)
{
    int index = device_index(device);
    return index >= 0 ? least(total, memory_limit(index)) : total;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuDeviceTotalMem_v2, bytes, device);
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = slice_of(device, *bytes);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuDeviceTotalMem, bytes, device);
    CUresult result = REAL(cuDeviceTotalMem)(bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = narrow(slice_of(device, *bytes));
    return result;
}
