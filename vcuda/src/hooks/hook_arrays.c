/* hook_arrays.c: arrays are padded by rules that the driver keeps to itself; whole granules cover them. */
#include "hooks/hook.h"
#include "memory/granule.h"

#define ROW 512u /* rows are padded at most to this */

/* Bytes of one element; of formats that are not plain numbers the widest. */
static uint64_t element_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default:
        return 4;
    }
}

/* Saturates: what does not fit into 64 bits fits on no device. */
static uint64_t times(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX / 4 : product;
}

/* `levels` of a mipmapped array add at most a third to the first. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    uint64_t row = granule_up(times(times(shape->Width, shape->NumChannels), element_bytes(shape->Format)), ROW);
    uint64_t bytes = times(times(row, shape->Height != 0 ? shape->Height : 1), shape->Depth != 0 ? shape->Depth : 1);
    if (levels > 1)
        bytes += bytes / 3;
    return granule_up(bytes, GRANULE);
}

/* Where the driver has refused a call, nothing that the program points to is looked at: `array` is NULL. */
static CUresult settle(CUresult result, int index, uint64_t bytes, const void *array, CUcontext context)
{
    if (result == CUDA_SUCCESS)
        remember(KIND_ARRAY, (uint64_t)(uintptr_t)array, index, bytes, context, 0);
    else
        discharge(index, bytes);
    return result;
}

static bool known(const void *array, const void *shape, CUcontext *context, int *index)
{
    return array != NULL && shape != NULL && current_owner(context, index);
}

/* The shape of every form as that of the widest. */
static CUDA_ARRAY3D_DESCRIPTOR wide_flat_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *shape)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){
        .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
}

static CUDA_ARRAY3D_DESCRIPTOR wide_flat(const CUDA_ARRAY_DESCRIPTOR *shape)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){
        .Width = shape->Width, .Height = shape->Height, .Format = shape->Format, .NumChannels = shape->NumChannels};
}

static CUDA_ARRAY3D_DESCRIPTOR wide_deep_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                     .Height = shape->Height,
                                     .Depth = shape->Depth,
                                     .Format = shape->Format,
                                     .NumChannels = shape->NumChannels,
                                     .Flags = shape->Flags};
}

static CUDA_ARRAY3D_DESCRIPTOR wide_deep(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return *shape;
}

#define CREATES(name, type, widen)                             \
    EXPORT CUresult name(CUarray *array, const type *shape)    \
    {                                                          \
        CUcontext context;                                     \
        int index;                                             \
        PASS_UNLESS_ACTIVE(name, array, shape);                \
        if (!known(array, shape, &context, &index))            \
            return REAL(name)(array, shape);                   \
        CUDA_ARRAY3D_DESCRIPTOR wide = widen(shape);           \
        uint64_t bytes = array_bytes(&wide, 1);                \
        if (!charge(index, bytes))                             \
            return CUDA_ERROR_OUT_OF_MEMORY;                   \
        CUresult result = REAL(name)(array, shape);            \
        CUarray made = result == CUDA_SUCCESS ? *array : NULL; \
        return settle(result, index, bytes, made, context);    \
    }

CREATES(cuArrayCreate, CUDA_ARRAY_DESCRIPTOR_v1, wide_flat_v1)
CREATES(cuArrayCreate_v2, CUDA_ARRAY_DESCRIPTOR, wide_flat)
CREATES(cuArray3DCreate, CUDA_ARRAY3D_DESCRIPTOR_v1, wide_deep_v1)
CREATES(cuArray3DCreate_v2, CUDA_ARRAY3D_DESCRIPTOR, wide_deep)

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuMipmappedArrayCreate, array, shape, levels);
    if (!known(array, shape, &context, &index))
        return REAL(cuMipmappedArrayCreate)(array, shape, levels);
    uint64_t bytes = array_bytes(shape, levels);
    if (!charge(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuMipmappedArrayCreate)(array, shape, levels);
    return settle(result, index, bytes, result == CUDA_SUCCESS ? *array : NULL, context);
}

#define DESTROYS(name, type)                                                      \
    EXPORT CUresult name(type array)                                              \
    {                                                                             \
        struct allocation allocation;                                             \
        PASS_UNLESS_ACTIVE(name, array);                                          \
        bool ours = freeing(KIND_ARRAY, (uint64_t)(uintptr_t)array, &allocation); \
        return freed(REAL(name)(array), ours, &allocation);                       \
    }

DESTROYS(cuArrayDestroy, CUarray)
DESTROYS(cuMipmappedArrayDestroy, CUmipmappedArray)
