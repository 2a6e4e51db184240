/* Libraries, the form of modules that knows no context: each is a module of the context that is current when it loads. */
#include "sim_driver.h"

/* A library and a kernel are handles of their own types for a module and a function. */
SIM_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options,
                                              void **option_values, unsigned int option_count,
                                              CUlibraryOption *library_options, void **library_values,
                                              unsigned int library_count)
{
    (void)options;
    (void)option_values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_count;
    return cuModuleLoadData((CUmodule *)library, code);
}

SIM_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options,
                                                  void **option_values, unsigned int option_count,
                                                  CUlibraryOption *library_options, void **library_values,
                                                  unsigned int library_count)
{
    (void)options;
    (void)option_values;
    (void)option_count;
    (void)library_options;
    (void)library_values;
    (void)library_count;
    return cuModuleLoad((CUmodule *)library, path);
}

SIM_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library)
{
    return cuModuleUnload((CUmodule)library);
}

SIM_EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

SIM_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    SIM_ENTER(COST_QUERY);
    if (module == NULL || library == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *module = (CUmodule)library;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    SIM_ENTER(COST_QUERY);
    if (function == NULL || kernel == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
