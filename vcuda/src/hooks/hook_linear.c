/* hook_linear.c: cuMemAlloc and its kin. Reserve, allocate, remember; take, free, discharge. */
#include "hooks/hook.h"
#include "memory/granule.h"
#include "memory/linear.h"

/* Plain allocations above the soft limit become managed memory, which the driver may move to the host. */
static bool over_soft_limit(int index, uint64_t bytes)
{
    uint64_t soft = config.devices[index].memory_soft_limit_bytes;
    return soft != 0 && ledger_held(ledger, index) + bytes > soft && REAL(cuMemAllocManaged) != NULL;
}

/* Where the driver has refused a call, nothing that the program points to is looked at. */
static CUresult settle(CUresult result, int index, uint64_t bytes, const CUdeviceptr *pointer, CUcontext context)
{
    if (result == CUDA_SUCCESS)
        linear_placed(index, bytes, *pointer, context);
    else
        linear_give_back(index, bytes);
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAlloc_v2, pointer, bytes);
    if (pointer == NULL || bytes == 0 || !current_owner(&context, &index))
        return REAL(cuMemAlloc_v2)(pointer, bytes);
    bool managed = over_soft_limit(index, bytes);
    if (!linear_reserve(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        managed ? REAL(cuMemAllocManaged)(pointer, bytes, CU_MEM_ATTACH_GLOBAL) : REAL(cuMemAlloc_v2)(pointer, bytes);
    return settle(result, index, bytes, pointer, context);
}

/* CUDA 3's 32-bit form: no pointer of today fits, but its memory would. */
EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAlloc, pointer, bytes);
    if (pointer == NULL || bytes == 0 || !current_owner(&context, &index))
        return REAL(cuMemAlloc)(pointer, bytes);
    if (!linear_reserve(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAlloc)(pointer, bytes);
    CUdeviceptr wide = result == CUDA_SUCCESS ? *pointer : 0;
    return settle(result, index, bytes, &wide, context);
}

/* The driver chooses the pitch. 512 bytes is the widest alignment of rows that any device asks for, so that this
 * is never less than what it takes; the difference is settled once the pitch is known. */
#define WIDEST_PITCH 512u

static uint64_t most_for(uint64_t width, uint64_t height)
{
    uint64_t row = granule_up(width, WIDEST_PITCH), bytes;
    return row < width || __builtin_mul_overflow(row, height, &bytes) ? UINT64_MAX : bytes;
}

static CUresult settle_pitch(CUresult result, int index, uint64_t most, uint64_t real, const CUdeviceptr *pointer,
                             CUcontext context)
{
    if (result == CUDA_SUCCESS && most >= GRANULE && real >= GRANULE &&
        granule_up(real, GRANULE) != granule_up(most, GRANULE)) {
        if (real < most)
            discharge(index, granule_up(most, GRANULE) - granule_up(real, GRANULE));
        else
            charge_anyway(index, granule_up(real, GRANULE) - granule_up(most, GRANULE));
        most = real;
    }
    return settle(result, index, most, pointer, context);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    if (pointer == NULL || pitch == NULL || width == 0 || height == 0 || !current_owner(&context, &index))
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t most = most_for(width, height);
    if (!linear_reserve(index, most))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t real = result == CUDA_SUCCESS ? *pitch * height : 0;
    return settle_pitch(result, index, most, real, pointer, context);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                                unsigned int element)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAllocPitch, pointer, pitch, width, height, element);
    if (pointer == NULL || pitch == NULL || width == 0 || height == 0 || !current_owner(&context, &index))
        return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    uint64_t most = most_for(width, height);
    if (!linear_reserve(index, most))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    uint64_t real = result == CUDA_SUCCESS ? (uint64_t)*pitch * height : 0;
    CUdeviceptr wide = result == CUDA_SUCCESS ? *pointer : 0;
    return settle_pitch(result, index, most, real, &wide, context);
}

/* Managed memory is charged as if all of it were on the device: it can be there at one time. */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAllocManaged, pointer, bytes, flags);
    if (pointer == NULL || bytes == 0 || !current_owner(&context, &index))
        return REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (!linear_reserve(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    return settle(result, index, bytes, pointer, context);
}

/* Memory that came from a pool, of this process or of another, may be freed so, too. */
static CUresult freed_otherwise(CUresult result, uint64_t pointer)
{
    struct allocation import;
    if (result == CUDA_SUCCESS) {
        if (allocations_take(&process()->allocations, KIND_IMPORT, pointer, &import))
            opened_of_others(-(int)import.count);
        pools_will_shrink();
    }
    return result;
}

#define FREES(name, type)                                                                         \
    EXPORT CUresult name(type pointer)                                                            \
    {                                                                                             \
        struct allocation allocation;                                                             \
        PASS_UNLESS_ACTIVE(name, pointer);                                                        \
        bool ours = linear_freeing(pointer, &allocation);                                         \
        CUresult result = REAL(name)(pointer);                                                    \
        return ours ? linear_freed(result, true, &allocation) : freed_otherwise(result, pointer); \
    }

FREES(cuMemFree, CUdeviceptr_v1)
FREES(cuMemFree_v2, CUdeviceptr)
