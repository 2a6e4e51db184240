/* The drivers of three releases, each loaded by its path. */
#define __CUDA_API_VERSION_INTERNAL
#include "check.h"

#include <dlfcn.h>
#include <string.h>

static void *library;

static void open_release(const char *release)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s/libcuda.so.1", getenv("LD_LIBRARY_PATH"), release);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
}

/* The symbol that the resolver's answer is exported as must be this one; NULL when it must have none. */
static void resolves(const char *name, int version, const char *symbol)
{
    typedef CUresult resolver(const char *, void **, int, cuuint64_t);
    resolver *resolve = (resolver *)dlsym(library, "cuGetProcAddress");
    void *address = NULL;
    CUresult result = resolve(name, &address, version, 0);
    CHECK((symbol == NULL) == (result == CUDA_ERROR_NOT_FOUND));
    CHECK(address == (symbol == NULL ? NULL : dlsym(library, symbol)));
}

static void the_driver_of_11_8_knows_nothing_newer(void)
{
    open_release("11.8");
    CHECK(dlsym(library, "cuGraphInstantiateWithParams") == NULL);
    CHECK(dlsym(library, "cuGetProcAddress_v2") == NULL);
    resolves("cuGraphInstantiate", 11080, "cuGraphInstantiate_v2");
    resolves("cuGraphInstantiate", 12000, "cuGraphInstantiate_v2");
    resolves("cuCtxCreate", 12050, "cuCtxCreate_v3");
    resolves("cuStreamGetId", 12000, NULL);
}

static void the_driver_of_12_gives_old_programs_the_old_forms(void)
{
    open_release("12");
    resolves("cuGraphInstantiate", 11080, "cuGraphInstantiate_v2");
    resolves("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags");
    resolves("cuCtxCreate", 11040, "cuCtxCreate_v3");
    resolves("cuCtxCreate", 12050, "cuCtxCreate_v4");
    resolves("cuGetProcAddress", 12000, "cuGetProcAddress_v2");
}

static void the_driver_of_13_still_has_all_of_them(void)
{
    int version = 0;
    open_release("13");
    OK(((CUresult(*)(int *))dlsym(library, "cuDriverGetVersion"))(&version));
    CHECK(version == 13000);
    resolves("cuMemAlloc", 2000, "cuMemAlloc");
    resolves("cuMemAlloc", 13000, "cuMemAlloc_v2");
    resolves("cuStreamGetCaptureInfo", 13000, "cuStreamGetCaptureInfo_v3");
}

int main(void)
{
    HOLDS(the_driver_of_11_8_knows_nothing_newer);
    HOLDS(the_driver_of_12_gives_old_programs_the_old_forms);
    HOLDS(the_driver_of_13_still_has_all_of_them);
    return 0;
}
