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

static CUresult ingreen(struct line *line)
{
    CUcontext context;
    (void)line;
    CUresult result = CU(cuCtxFromGreenCtx)(&context, part);
    return result == CUDA_SUCCESS ? CU(cuCtxPushCurrent_v2)(context) : result;
}

static CUresult outgreen(struct line *line)
{
    CUcontext popped;
    (void)line;
    return CU(cuCtxPopCurrent_v2)(&popped);
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

/* A module whose variables take so many bytes, and a library. */
static const char *with_variables(size_t bytes)
{
    char name[48];
    snprintf(name, sizeof name, "holds_%zu", bytes);
    return kernel_module(name);
}

static CUresult module(struct line *line)
{
    return CU(cuModuleLoadData)((CUmodule *)place(line->name), with_variables(line->one));
}

static CUresult module_of_options(struct line *line)
{
    return CU(cuModuleLoadDataEx)((CUmodule *)place(line->name), with_variables(line->one), 0, NULL, NULL);
}

static const char *file_with_variables(const struct line *line)
{
    FILE *file = fopen(line->text, "w");
    fputs(with_variables(line->two), file);
    fclose(file);
    return line->text;
}

static CUresult module_of_file(struct line *line)
{
    return CU(cuModuleLoad)((CUmodule *)place(line->name), file_with_variables(line));
}

static CUresult library_of_file(struct line *line)
{
    return CU(cuLibraryLoadFromFile)((CUlibrary *)place(line->name), file_with_variables(line), NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult unmodule(struct line *line)
{
    return CU(cuModuleUnload)((CUmodule)*place(line->name));
}

static CUresult library_of(struct line *line)
{
    return CU(cuLibraryLoadData)((CUlibrary *)place(line->name), with_variables(line->one), NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult unlibrary(struct line *line)
{
    return CU(cuLibraryUnload)((CUlibrary)*place(line->name));
}

static CUresult heap(struct line *line)
{
    return CU(cuCtxSetLimit)(CU_LIMIT_MALLOC_HEAP_SIZE, line->one);
}

static CUresult prints(struct line *line)
{
    return CU(cuCtxSetLimit)(CU_LIMIT_PRINTF_FIFO_SIZE, line->one);
}

static CUresult stack(struct line *line)
{
    return CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, line->one);
}

/* By a private table, as NVIDIA's own libraries can: so many contexts, each with a launch, one after the other. */
static CUresult bypass(struct line *line)
{
    static const CUuuid id = {{0x0C, (char)0xA5, 0x0B, (char)0x8C, 0x10, 0x04, (char)0x92, (char)0x9A,
                               (char)0x89, (char)0xA7, (char)0xD0, (char)0xDF, 0x10, (char)0xE7, 0x72, (char)0x86}};
    static struct line small = {.name = "spin_us_1"};
    const struct {
        size_t bytes;
        __typeof__(cuCtxCreate_v2) *create;
    } *table;
    CUresult result = CU(cuGetExportTable)((const void **)&table, &id);
    for (size_t i = 0; result == CUDA_SUCCESS && i < line->one; i++) {
        result = table->create(&own, 0, 0);
        if (result == CUDA_SUCCESS)
            result = launch(&small);
        if (result == CUDA_SUCCESS)
            result = CU(cuCtxDestroy_v2)(own);
    }
    return result;
}

const struct verb context_verbs[] = {
    {"init", init},         {"ctx", ctx},           {"release", release}, {"newctx", newctx}, {"endctx", endctx},
    {"newgreen", newgreen}, {"endgreen", endgreen}, {"ingreen", ingreen}, {"outgreen", outgreen}, {"launch", launch},   {"heap", heap},
    {"attach", attach},     {"endprimary", endprimary}, {"reset", reset}, {"prints", prints},
    {"stack", stack},       {"bypass", bypass},     {"module", module},   {"moduleex", module_of_options},
    {"modulefile", module_of_file}, {"unmodule", unmodule}, {"library", library_of}, {"libraryfile", library_of_file},
    {"unlibrary", unlibrary},
    {NULL, NULL},
};
