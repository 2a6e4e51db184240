#include <stdlib.h>

#include "../kernels.h"
#include "actor.h"

static CUcontext primary;
CUcontext own;
static CUgreenCtx part;

static CUresult init(struct line *line)
{
    (void)line;
    return CU(cuInit)(0);
}

static CUresult ctx(struct line *line)
{
    CUresult result = CU(cuDevicePrimaryCtxRetain)(&primary, atoi(line->name));
    return result == CUDA_SUCCESS ? CU(cuCtxPushCurrent_v2)(primary) : result;
}

static CUresult release(struct line *line)
{
    return CU(cuDevicePrimaryCtxRelease_v2)(atoi(line->name));
}

static CUresult newctx(struct line *line)
{
    return CU(cuCtxCreate_v2)(&own, 0, atoi(line->name));
}

static CUresult endctx(struct line *line)
{
    (void)line;
    return CU(cuCtxDestroy_v2)(own);
}

static CUresult attach(struct line *line)
{
    CUcontext context;
    (void)line;
    return CU(cuCtxAttach)(&context, 0);
}

static CUresult endprimary(struct line *line)
{
    (void)line;
    return CU(cuCtxDestroy_v2)(primary);
}

static CUresult reset(struct line *line)
{
    return CU(cuDevicePrimaryCtxReset_v2)(atoi(line->name));
}

static CUresult newgreen(struct line *line)
{
    (void)line;
    return CU(cuGreenCtxCreate)(&part, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM);
}

static CUresult endgreen(struct line *line)
{
    (void)line;
    return CU(cuGreenCtxDestroy)(part);
}

static CUresult launch(struct line *line)
{
    CUmodule module;
    CUfunction function;
    CUresult result = CU(cuModuleLoadData)(&module, kernel_module(line->name));
    if (result == CUDA_SUCCESS)
        result = CU(cuModuleGetFunction)(&function, module, line->name);
    if (result == CUDA_SUCCESS)
        result = CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result == CUDA_SUCCESS ? CU(cuStreamSynchronize)(NULL) : result;
}

static CUresult heap(struct line *line)
{
    return CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, line->one);
}

static CUresult prints(struct line *line)
{
    return CU(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, line->one);
}

const struct verb context_verbs[] = {
    {"init", init},         {"ctx", ctx},           {"release", release}, {"newctx", newctx}, {"endctx", endctx},
    {"newgreen", newgreen}, {"endgreen", endgreen}, {"launch", launch},   {"heap", heap},
    {"attach", attach},     {"endprimary", endprimary}, {"reset", reset}, {"prints", prints}, {NULL, NULL},
};
