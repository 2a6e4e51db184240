/* hooks_linear.c: cuMemAlloc and its kin. Charge, allocate, remember; take, free, discharge. */
#include "granule.h"
#include "hook.h"

/* Plain allocations above the soft limit become managed memory, which the driver may move to the host. */
static bool over_soft_limit(int index, uint64_t bytes)
{
    uint64_t soft = config.devices[index].memory_soft_limit_bytes;
    return soft != 0 && ledger_held(ledger, index) + bytes > soft && REAL(cuMemAllocManaged) != NULL;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAlloc_v2, pointer, bytes);
    if (!current_device(&context, &index) || pointer == NULL || bytes == 0)
        return REAL(cuMemAlloc_v2)(pointer, bytes);
    uint64_t charged = granule_linear(bytes);
    bool managed = over_soft_limit(index, charged);
    if (charged < bytes || !charge(index, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = managed ? REAL(cuMemAllocManaged)(pointer, bytes, CU_MEM_ATTACH_GLOBAL)
                              : REAL(cuMemAlloc_v2)(pointer, bytes);
    if (result == CUDA_SUCCESS)
        remember(KIND_LINEAR, *pointer, index, charged, context, 0);
    else
        discharge(index, charged);
    return result;
}

/* CUDA 3's 32-bit form: no pointer of today fits, but its memory would. */
EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned int bytes)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAlloc, pointer, bytes);
    if (!current_device(&context, &index) || pointer == NULL)
        return REAL(cuMemAlloc)(pointer, bytes);
    uint64_t charged = granule_linear(bytes);
    if (!charge(index, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAlloc)(pointer, bytes);
    if (result == CUDA_SUCCESS)
        remember(KIND_LINEAR, *pointer, index, charged, context, 0);
    else
        discharge(index, charged);
    return result;
}

/* The driver chooses the pitch; 512 bytes is the widest alignment of rows that any device asks for, so this is
 * never less than what it takes. The difference is given back once the pitch is known. */
#define WIDEST_PITCH 512u

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned int element)
{
    CUcontext context;
    int index;
    size_t row, most;
    PASS_UNLESS_ACTIVE(cuMemAllocPitch_v2, pointer, pitch, width, height, element);
    if (!current_device(&context, &index) || pointer == NULL || pitch == NULL)
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (__builtin_add_overflow(width, WIDEST_PITCH - 1, &row) ||
        __builtin_mul_overflow(row / WIDEST_PITCH * WIDEST_PITCH, height, &most))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charged = granule_linear(most);
    if (charged < most || !charge(index, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    if (result != CUDA_SUCCESS) {
        discharge(index, charged);
        return result;
    }
    uint64_t real = granule_linear(*pitch * height);
    if (real < charged)
        discharge(index, charged - real);
    else
        charge_anyway(index, real - charged);
    remember(KIND_LINEAR, *pointer, index, real, context, 0);
    return result;
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                                unsigned int element)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAllocPitch, pointer, pitch, width, height, element);
    if (!current_device(&context, &index) || pointer == NULL || pitch == NULL)
        return REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    uint64_t row = ((uint64_t)width + WIDEST_PITCH - 1) / WIDEST_PITCH * WIDEST_PITCH;
    uint64_t charged = granule_linear(row * height);
    if (!charge(index, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocPitch)(pointer, pitch, width, height, element);
    if (result == CUDA_SUCCESS)
        remember(KIND_LINEAR, *pointer, index, charged, context, 0);
    else
        discharge(index, charged);
    return result;
}

/* Managed memory is charged as if it were all on the device: nobody can hold more of it there at one time. With a
 * soft limit it may exceed the limit, for the driver then keeps the rest on the host. */
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMemAllocManaged, pointer, bytes, flags);
    if (!current_device(&context, &index) || pointer == NULL || bytes == 0)
        return REAL(cuMemAllocManaged)(pointer, bytes, flags);
    uint64_t charged = granule_linear(bytes);
    if (charged < bytes || !charge(index, charged))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    if (result == CUDA_SUCCESS)
        remember(KIND_LINEAR, *pointer, index, charged, context, 0);
    else
        discharge(index, charged);
    return result;
}

/* The row is taken before the driver frees: once it has, another thread may be given the same pointer. */
#define FREES(name, type)                                                              \
    EXPORT CUresult name(type pointer)                                                 \
    {                                                                                  \
        struct allocation allocation;                                                  \
        PASS_UNLESS_ACTIVE(name, pointer);                                             \
        struct allocations *all = &process()->allocations;                             \
        bool ours = allocations_take(all, KIND_LINEAR, pointer, &allocation);          \
        CUresult result = REAL(name)(pointer);                                         \
        if (ours && result == CUDA_SUCCESS)                                            \
            discharge(allocation.device, allocation.bytes);                            \
        else if (ours)                                                                 \
            allocations_put(all, &allocation);                                         \
        return result;                                                                 \
    }

FREES(cuMemFree, CUdeviceptr_v1)
FREES(cuMemFree_v2, CUdeviceptr)
