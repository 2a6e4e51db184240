/* Older and other forms of calls, where their parameters differ. */
#include <stdlib.h>

#include "actor.h"

static CUresult alloc32(struct line *line)
{
    CUdeviceptr_v1 pointer;
    return CU(cuMemAlloc)(&pointer, (unsigned int)line->one);
}

static CUresult pitch32(struct line *line)
{
    CUdeviceptr_v1 pointer;
    unsigned int pitch;
    return CU(cuMemAllocPitch)(&pointer, &pitch, (unsigned int)line->one, (unsigned int)line->two, 4);
}

static CUresult info32(struct line *line)
{
    unsigned int left = 0, total = 0;
    CUresult result = CU(cuMemGetInfo)(&left, &total);
    line->a = left;
    line->b = total;
    return result;
}

static CUresult total32(struct line *line)
{
    unsigned int total = 0;
    CUresult result = CU(cuDeviceTotalMem)(&total, atoi(line->name));
    line->a = total;
    return result;
}

static CUresult array32(struct line *line)
{
    CUDA_ARRAY_DESCRIPTOR_v1 shape = {.Width = (unsigned int)line->one,
                                      .Height = (unsigned int)line->two,
                                      .NumChannels = 4,
                                      .Format = CU_AD_FORMAT_HALF};
    return CU(cuArrayCreate)((CUarray *)place(line->name), &shape);
}

static CUresult cube32(struct line *line)
{
    unsigned int side = (unsigned int)line->one;
    CUDA_ARRAY3D_DESCRIPTOR_v1 shape = {
        .Width = side, .Height = side, .Depth = side, .NumChannels = 1, .Format = CU_AD_FORMAT_UNSIGNED_INT8};
    return CU(cuArray3DCreate)((CUarray *)place(line->name), &shape);
}

static CUresult cube(struct line *line)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = line->one, .Height = line->one, .Depth = line->one, .NumChannels = 1, .Format = CU_AD_FORMAT_FLOAT};
    return CU(cuArray3DCreate_v2)((CUarray *)place(line->name), &shape);
}

static CUresult external(struct line *line)
{
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = line->one};
    return CU(cuImportExternalMemory)((CUexternalMemory *)place(line->name), &from);
}

static CUresult endexternal(struct line *line)
{
    return CU(cuDestroyExternalMemory)((CUexternalMemory)*place(line->name));
}

static CUresult ctx3(struct line *line)
{
    (void)line;
    return CU(cuCtxCreate_v3)(&own, NULL, 0, 0, 0);
}

static CUresult ctx4(struct line *line)
{
    CUctxCreateParams how = {0};
    (void)line;
    return CU(cuCtxCreate_v4)(&own, &how, 0, 0);
}

const struct verb form_verbs[] = {
    {"alloc32", alloc32}, {"pitch32", pitch32}, {"info32", info32},     {"total32", total32},         {"array32", array32},
    {"cube32", cube32},   {"cube", cube},       {"external", external}, {"endexternal", endexternal}, {"newctx3", ctx3},
    {"newctx4", ctx4},    {NULL, NULL},
};
