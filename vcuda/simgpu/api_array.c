/* Arrays: opaque device memory, padded to whole granules. */
#include <stdlib.h>

#include "handle.h"
#include "sim_memory.h"

struct CUarray_st {
    uint64_t address;
    CUmemGenericAllocationHandle mapped; /* the memory behind a sparse array; one handle at a time */
    CUDA_ARRAY3D_DESCRIPTOR shape;
    int level; /* of a mipmapped array, which it goes with */
};

struct CUmipmappedArray_st {
    uint64_t address;
    struct CUarray_st level;
};

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

static uint64_t shape_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    uint64_t height = shape->Height == 0 ? 1 : shape->Height;
    uint64_t depth = shape->Depth == 0 ? 1 : shape->Depth;
    uint64_t row = (shape->Width * shape->NumChannels * element_bytes(shape->Format) + 511) / 512 * 512;
    return row * height * depth;
}

/* A mipmapped array's smaller levels add at most a third. */
static CUresult take(const CUDA_ARRAY3D_DESCRIPTOR *shape, int levels, uint64_t *address)
{
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS || shape == NULL || shape->Width == 0 || shape->NumChannels == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (shape->Flags & CUDA_ARRAY3D_SPARSE) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    uint64_t bytes = shape_bytes(shape);
    return sim_allocate(context, levels > 1 ? bytes + bytes / 3 : bytes, SIM_ARRAY, address);
}

static CUresult make(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    struct CUarray_st *made = array == NULL ? NULL : calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = take(shape, 1, &made->address);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->shape = *shape;
    *array = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    SIM_ENTER(COST_VIRTUAL);
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = flat->Width, .Height = flat->Height, .Format = flat->Format, .NumChannels = flat->NumChannels};
    return make(array, &shape);
}

SIM_EXPORT CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    SIM_ENTER(COST_VIRTUAL);
    return make(array, shape);
}

SIM_EXPORT CUresult CUDAAPI cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *flat)
{
    SIM_ENTER(COST_VIRTUAL);
    if (flat == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = flat->Width, .Height = flat->Height, .Format = flat->Format, .NumChannels = flat->NumChannels};
    return make(array, &shape);
}

SIM_EXPORT CUresult CUDAAPI cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
    SIM_ENTER(COST_VIRTUAL);
    if (old == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = old->Width, .Height = old->Height, .Depth = old->Depth,
                                     .Format = old->Format, .NumChannels = old->NumChannels, .Flags = old->Flags};
    return make(array, &shape);
}

SIM_EXPORT CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    SIM_ENTER(COST_QUERY);
    if (shape == NULL || array == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *shape = array->shape;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    SIM_ENTER(COST_VIRTUAL);
    if (array == NULL || array->level) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = array->address == 0 ? CUDA_SUCCESS : sim_release(array->address, SIM_ARRAY);
    if (array->mapped != 0) {
        sim_physical_ref(sim_physical_unpack(array->mapped), -1, NULL);
    }
    free(array);
    return result;
}

static CUresult map_one(const CUarrayMapInfo *info)
{
    if (info->resourceType != CU_RESOURCE_TYPE_ARRAY || info->resource.array == NULL) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUarray array = info->resource.array;
    if (array->mapped != 0) {
        sim_physical_ref(sim_physical_unpack(array->mapped), -1, NULL);
        array->mapped = 0;
    }
    if (info->memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
        return CUDA_SUCCESS;
    }
    CUresult result = sim_physical_ref(sim_physical_unpack(info->memHandle.memHandle), 1, NULL);
    array->mapped = result == CUDA_SUCCESS ? info->memHandle.memHandle : 0;
    return result;
}

static CUresult map(const CUarrayMapInfo *infos, unsigned int count)
{
    CUresult result = infos == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = map_one(&infos[i]);
    }
    return result;
}

SIM_TWINS(cuMemMapArrayAsync, _ptsz, COST_VIRTUAL, (CUarrayMapInfo *infos, unsigned int count, CUstream stream),
          ((void)stream, map(infos, count)))

SIM_EXPORT CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                                   unsigned int levels)
{
    SIM_ENTER(COST_VIRTUAL);
    struct CUmipmappedArray_st *made = array == NULL || levels == 0 ? NULL : calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = take(shape, (int)levels, &made->address);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    made->level = (struct CUarray_st){.address = 0, .shape = *shape, .level = 1};
    *array = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int number)
{
    (void)number;
    SIM_ENTER(COST_QUERY);
    if (level == NULL || array == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *level = &array->level;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    SIM_ENTER(COST_VIRTUAL);
    if (array == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = array->address == 0 ? CUDA_SUCCESS : sim_release(array->address, SIM_ARRAY);
    free(array);
    return result;
}
