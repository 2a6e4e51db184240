/* asks_next.c: a tool between a program and the driver, linked with both of the driver's libraries, which asks for the functions
 * behind its own. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    __typeof__(cuMemAlloc_v2) *next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return next != NULL ? next(pointer, size) : CUDA_ERROR_NOT_FOUND;
}

const char *file_of_next(const char *name)
{
    Dl_info info;
    void *next = dlsym(RTLD_NEXT, name);
    return next != NULL && dladdr(next, &info) != 0 ? info.dli_fname : "nowhere";
}
