#include <stdlib.h>

#include "actor.h"

static CUresult info(struct line *line)
{
    return CU(cuMemGetInfo_v2)(&line->a, &line->b);
}

static CUresult total(struct line *line)
{
    return CU(cuDeviceTotalMem_v2)(&line->a, atoi(line->name));
}

static CUresult alloc(struct line *line)
{
    return CU(cuMemAlloc_v2)(place(line->name), line->one);
}

static CUresult managed(struct line *line)
{
    return CU(cuMemAllocManaged)(place(line->name), line->one, CU_MEM_ATTACH_GLOBAL);
}

/* On the device: managed memory is there from then on. */
static CUresult filled(struct line *line)
{
    CUresult result = CU(cuMemsetD8_v2)(*place(line->name), 0, line->one);
    return result != CUDA_SUCCESS ? result : CU(cuStreamSynchronize)(NULL);
}

static CUresult pitched(struct line *line)
{
    size_t pitch;
    return CU(cuMemAllocPitch_v2)(place(line->name), &pitch, line->one, line->two, 4);
}

static CUresult freed(struct line *line)
{
    return CU(cuMemFree_v2)(*place(line->name));
}

static CUresult is_managed(struct line *line)
{
    unsigned int answer = 0;
    CUresult result = CU(cuPointerGetAttribute)(&answer, CU_POINTER_ATTRIBUTE_IS_MANAGED, *place(line->name));
    line->a = answer;
    return result;
}

static CUresult array(struct line *line)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = line->one, .Height = line->two, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT};
    return CU(cuArrayCreate_v2)((CUarray *)place(line->name), &shape);
}

static CUresult freearray(struct line *line)
{
    return CU(cuArrayDestroy)((CUarray)*place(line->name));
}

static CUresult mipmap(struct line *line)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {
        .Width = line->one, .Height = line->two, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT};
    return CU(cuMipmappedArrayCreate)((CUmipmappedArray *)place(line->name), &shape, 4);
}

static CUresult level(struct line *line)
{
    CUmipmappedArray array = (CUmipmappedArray)*place(line->text);
    return CU(cuMipmappedArrayGetLevel)((CUarray *)place(line->name), array, 1);
}

static CUresult freemipmap(struct line *line)
{
    return CU(cuMipmappedArrayDestroy)((CUmipmappedArray)*place(line->name));
}

const struct verb memory_verbs[] = {
    {"info", info},   {"total", total},         {"alloc", alloc}, {"managed", managed},     {"pitch", pitched},
    {"free", freed},  {"managed?", is_managed}, {"array", array}, {"freearray", freearray}, {"mipmap", mipmap},
    {"level", level}, {"freemipmap", freemipmap}, {"fill", filled}, {NULL, NULL},
};
