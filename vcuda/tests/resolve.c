/* resolve.c: does every way to a driver function lead to the same address?
 *
 * Linked with the driver, as old programs are. Prints one line per disagreement, then "HOOKED PLAIN": how many names
 * led into the shim and how many to the driver.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *library;

static const char *home_of(const void *address)
{
    Dl_info info;
    const char *file = address != NULL && dladdr(address, &info) != 0 ? strrchr(info.dli_fname, '/') : NULL;
    return file != NULL ? file + 1 : "nowhere";
}

/* What the driver's resolver gives for a name, in the version of this driver. */
static void *resolved(const char *name, unsigned long long flags)
{
    void *function = NULL;
    int version = 0;
    ((__typeof__(cuDriverGetVersion) *)dlsym(library, "cuDriverGetVersion"))(&version);
    __typeof__(cuGetProcAddress_v2) *second = dlsym(library, "cuGetProcAddress_v2");
    if (second != NULL)
        second(name, &function, version, flags, NULL);
    else
        ((__typeof__(cuGetProcAddress) *)dlsym(library, "cuGetProcAddress"))(name, &function, version, flags);
    return function;
}

static int is_shim(const void *function)
{
    return strncmp(home_of(function), "libvcuda", 8) == 0;
}

/* The name that the resolver knows, and the name that is exported for it in CUDA 11.8 and later. */
static const char *const names[][2] = {
    {"cuMemAlloc", "cuMemAlloc_v2"},
    {"cuMemFree", "cuMemFree_v2"},
    {"cuMemGetInfo", "cuMemGetInfo_v2"},
    {"cuLaunchKernel", "cuLaunchKernel"},
    {"cuMemAllocAsync", "cuMemAllocAsync"},
    {"cuMemCreate", "cuMemCreate"},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2"},
    {"cuGraphLaunch", "cuGraphLaunch"},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain"},
    {"cuInit", "cuInit"},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2"},
    {"cuStreamQuery", "cuStreamQuery"},
    {"cuMipmappedArrayGetLevel", "cuMipmappedArrayGetLevel"},
};

/* The driver's resolver says of a name also what it knows of it. */
static void check_status(void)
{
    CUdriverProcAddressQueryResult there = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, missing = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function;
    __typeof__(cuGetProcAddress_v2) *resolve = dlsym(library, "cuGetProcAddress_v2");
    if (resolve == NULL) /* of CUDA 12 */
        return;
    resolve("cuMemAlloc", &function, 12000, 0, &there);
    resolve("cuNoSuchFunction", &function, 12000, 0, &missing);
    if (there != CU_GET_PROC_ADDRESS_SUCCESS || missing != CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
        printf("the resolver's word is lost: %d %d\n", (int)there, (int)missing);
}

/*     resolve next NAME      prints which file has what comes after this program under a name */
int main(int count, char **arguments)
{
    int hooked = 0, plain = 0;
    if (count == 3) {
        puts(home_of(dlsym(RTLD_NEXT, arguments[2])));
        return 0;
    }
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuInit(0) != CUDA_SUCCESS) /* by linking */
        return 3;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *by_name = dlsym(library, names[i][1]), *by_resolver = resolved(names[i][0], 0);
        if (by_name != by_resolver)
            printf("%s: dlsym says %s, cuGetProcAddress %s\n", names[i][0], home_of(by_name), home_of(by_resolver));
        if (is_shim(by_resolver))
            hooked++;
        else
            plain++;
    }
    void *twin = resolved("cuLaunchKernel", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (twin != dlsym(library, "cuLaunchKernel_ptsz") || !is_shim(twin))
        printf("cuLaunchKernel_ptsz comes from %s\n", home_of(twin));
    if (dlsym(library, "cuNoSuchFunction") != NULL || resolved("cuNoSuchFunction", 0) != NULL)
        printf("cuNoSuchFunction exists\n");
    if (!is_shim(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")))
        printf("RTLD_DEFAULT leads past the shim\n");
    void *next = dlsym(RTLD_NEXT, "getpid"), *same = dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.2.5");
    if (next == NULL || strncmp(home_of(next), "libc.so", 7) != 0 || (same != NULL && same != next))
        printf("getpid comes from %s\n", home_of(next));
    check_status();
    printf("%d %d\n", hooked, plain);
    return 0;
}
