/* Modules and functions. An image is never looked into, but for its size if it is text. */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture.h"
#include "kernel_name.h"
#include "sim_memory.h"

/* What a module's code takes on the device where its image does not say "simgpu-bytes N". */
#define MODULE_BYTES SIM_GRANULE

static int lazy(void)
{
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode == NULL || strcmp(mode, "EAGER") != 0;
}

static CUresult bring(CUmodule module)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_lock);
    if (module->charged == 0) {
        result = sim_charge(module->context, sim_granules(module->bytes));
        module->charged = result == CUDA_SUCCESS ? sim_granules(module->bytes) : 0;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static uint64_t image_bytes(const void *image)
{
    unsigned long long bytes = 0;
    const char *text = image;
    if (!isprint((unsigned char)text[0]) || sscanf(text, "// simgpu-bytes %llu", &bytes) != 1 || bytes == 0) {
        return MODULE_BYTES;
    }
    return bytes;
}

static CUresult load(CUmodule *module, const void *image)
{
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (module == NULL || image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_capture_forbids()) {
        return sim_capture_spoil(NULL);
    }
    struct CUmod_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUmod_st){.context = context, .bytes = image_bytes(image)};
    result = lazy() ? CUDA_SUCCESS : bring(made);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *module = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    SIM_ENTER(COST_MODULE);
    return load(module, image);
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                               CUjit_option *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    SIM_ENTER(COST_MODULE);
    return load(module, image);
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    SIM_ENTER(COST_MODULE);
    return load(module, image);
}

SIM_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path)
{
    SIM_ENTER(COST_MODULE);
    char head[256] = "";
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    ssize_t got = read(file, head, sizeof head - 1);
    close(file);
    return got < 0 ? CUDA_ERROR_INVALID_IMAGE : load(module, head);
}

SIM_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
    SIM_ENTER(COST_VIRTUAL);
    if (module == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_discharge(module->context, module->charged);
    while (module->functions != NULL) {
        CUfunction function = module->functions;
        module->functions = function->next;
        free(function);
    }
    free(module);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SIM_ENTER(COST_QUERY);
    *mode = lazy() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    SIM_ENTER(COST_COPY);
    if (function == NULL || module == NULL || name == NULL || *name == '\0') {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUfunc_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_kernel kernel;
    sim_kernel_parse(name, sim_seat.node->settings.kernel_ns, &kernel);
    made->module = module;
    pthread_mutex_lock(&sim_process_lock);
    made->next = module->functions;
    module->functions = made;
    pthread_mutex_unlock(&sim_process_lock);
    made->kind = kernel.kind;
    made->width = kernel.width;
    made->meeting = kernel.meeting;
    made->members = kernel.members;
    made->solo_ns = kernel.solo_ns;
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module, const char *name)
{
    (void)address;
    (void)bytes;
    (void)module;
    (void)name;
    SIM_ENTER(COST_QUERY);
    return CUDA_ERROR_NOT_FOUND;
}

SIM_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function)
{
    SIM_ENTER(COST_MODULE);
    return function == NULL ? CUDA_ERROR_INVALID_HANDLE : bring(function->module);
}

SIM_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function)
{
    SIM_ENTER(COST_QUERY);
    if (value == NULL || function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value)
{
    (void)which;
    (void)value;
    SIM_ENTER(COST_QUERY);
    return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    (void)config;
    SIM_ENTER(COST_QUERY);
    return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult sim_function_bring(CUfunction function)
{
    return __atomic_load_n(&function->module->charged, __ATOMIC_RELAXED) != 0 ? CUDA_SUCCESS : bring(function->module);
}
