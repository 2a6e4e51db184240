/* runtime_calls.c: calls the driver as NVIDIA's CUDA runtime does, through the functions that the runtime itself asks for.
 *
 *     runtime_calls where      "NAME VERSION FLAGS FILE FUNCTION" for each line "NAME VERSION FLAGS" of the standard input
 *     runtime_calls calls      the same lines; then what each of the runtime's calls comes to: "CALL CURESULT"
 *
 * The lines are what a real runtime asked cuGetProcAddress (SIMGPU_TRACE): it resolves its whole table before it calls
 * anything. Which of them a call of the runtime needs, its reference says: below each function of the runtime it names the
 * driver's ("See also"), and "Interactions with the CUDA Driver API" says that it works in the primary context.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels.h"

#define MIB ((size_t)1 << 20)
#define MOST 2048

static struct entry {
    char name[64];
    int version;
    unsigned long long flags;
    void *address;
} entries[MOST];
static int count;

/* Of the runtime's questions this one's answer. */
static void *entry(const char *name, int version, unsigned long long flags)
{
    for (int i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0 && entries[i].version == version && entries[i].flags == flags &&
            entries[i].address != NULL)
            return entries[i].address;
    fprintf(stderr, "the runtime does not ask for %s of %d, or gets none\n", name, version);
    exit(3);
}

/* The runtime's entry, with the prototype of the driver's function of that version. PER_THREAD: where the NULL stream is the
 * thread's own. */
#define CALL(form, name, version) ((__typeof__(form) *)entry(#name, version, 0))
#define PER_THREAD(form, name, version) \
    ((__typeof__(form) *)entry(#name, version, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))

static void resolve(void)
{
    __typeof__(cuGetProcAddress_v2) *ask;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || (*(void **)&ask = dlsym(driver, "cuGetProcAddress_v2")) == NULL)
        exit(3);
    struct entry one;
    while (count < MOST && scanf("%63s %d %llu", one.name, &one.version, &one.flags) == 3) {
        CUdriverProcAddressQueryResult status;
        if (ask(one.name, &one.address, one.version, one.flags, &status) != CUDA_SUCCESS)
            one.address = NULL;
        entries[count++] = one;
    }
}

static void say_where(void)
{
    for (int i = 0; i < count; i++) {
        Dl_info info = {0};
        if (entries[i].address != NULL)
            dladdr(entries[i].address, &info);
        const char *path = info.dli_fname != NULL ? info.dli_fname : "-";
        const char *file = strrchr(path, '/');
        printf("%s %d %llu %s %s\n", entries[i].name, entries[i].version, entries[i].flags, file != NULL ? file + 1 : path,
               info.dli_sname != NULL ? info.dli_sname : "-");
    }
}

static void say(const char *call, CUresult result)
{
    printf("%s %d\n", call, (int)result);
}

static void context(void)
{
    CUcontext context;
    CUresult result = CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)(&context, 0);
    say("context", result != CUDA_SUCCESS ? result : CALL(cuCtxSetCurrent, cuCtxSetCurrent, 4000)(context));
}

static void memory(void)
{
    CUdeviceptr pointer = 0, other = 0;
    size_t free_bytes = 0, total = 0;
    say("cudaMalloc", CALL(cuMemAlloc_v2, cuMemAlloc, 3020)(&pointer, 100 * MIB));
    say("cudaMalloc of more than the slice", CALL(cuMemAlloc_v2, cuMemAlloc, 3020)(&other, 2048 * MIB));
    say("cudaMemGetInfo", CALL(cuMemGetInfo_v2, cuMemGetInfo, 3020)(&free_bytes, &total));
    printf("total %zu\n", total / MIB);
    say("cudaFree", CALL(cuMemFree_v2, cuMemFree, 3020)(pointer));
    say("cudaMallocAsync", CALL(cuMemAllocAsync, cuMemAllocAsync, 11020)(&pointer, 64 * MIB, NULL));
    say("cudaFreeAsync", CALL(cuMemFreeAsync, cuMemFreeAsync, 11020)(pointer, NULL));
    say("cudaMallocAsync per thread", PER_THREAD(cuMemAllocAsync, cuMemAllocAsync, 11020)(&pointer, 64 * MIB, NULL));
    say("cudaFreeAsync per thread", PER_THREAD(cuMemFreeAsync, cuMemFreeAsync, 11020)(pointer, NULL));
    say("cudaDeviceSynchronize", CALL(cuCtxSynchronize, cuCtxSynchronize, 2000)());
}

static CUfunction loaded(void)
{
    CUlibrary library;
    CUkernel kernel = NULL;
    const char *ptx = kernel_module("spin_us_10");
    say("cudaLibraryLoadData",
        CALL(cuLibraryLoadData, cuLibraryLoadData, 12000)(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    say("cudaLibraryGetKernel", CALL(cuLibraryGetKernel, cuLibraryGetKernel, 12000)(&kernel, library, "spin_us_10"));
    return (CUfunction)kernel; /* cuLaunchKernel takes either, by its documentation */
}

static void launches(CUfunction function)
{
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    say("cudaLaunchKernel", CALL(cuLaunchKernel, cuLaunchKernel, 4000)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    say("cudaLaunchKernel per thread",
        PER_THREAD(cuLaunchKernel, cuLaunchKernel, 7000)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    say("cudaLaunchKernelExC", CALL(cuLaunchKernelEx, cuLaunchKernelEx, 11060)(&config, function, NULL, NULL));
}

static void graph(CUfunction function)
{
    CUstream stream = NULL;
    CUgraph captured = NULL;
    CUgraphExec executable = NULL;
    say("cudaStreamCreate", CALL(cuStreamCreate, cuStreamCreate, 2000)(&stream, CU_STREAM_NON_BLOCKING));
    say("cudaStreamBeginCapture",
        CALL(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    say("captured", CALL(cuLaunchKernel, cuLaunchKernel, 4000)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    say("cudaStreamEndCapture", CALL(cuStreamEndCapture, cuStreamEndCapture, 10000)(stream, &captured));
    say("cudaGraphInstantiate",
        CALL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040)(&executable, captured, 0));
    say("cudaGraphLaunch", CALL(cuGraphLaunch, cuGraphLaunch, 10000)(executable, stream));
    say("cudaStreamSynchronize", CALL(cuStreamSynchronize, cuStreamSynchronize, 2000)(stream));
    say("cudaGraphExecDestroy", CALL(cuGraphExecDestroy, cuGraphExecDestroy, 10000)(executable));
}

static void make_calls(void)
{
    int devices = 0;
    say("cudaGetDeviceCount", CALL(cuInit, cuInit, 2000)(0));
    say("cudaGetDeviceCount", CALL(cuDeviceGetCount, cuDeviceGetCount, 2000)(&devices));
    printf("devices %d\n", devices);
    context();
    memory();
    CUfunction function = loaded();
    launches(function);
    graph(function);
    say("cudaDeviceReset", CALL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000)(0));
    context();
    CUdeviceptr pointer;
    say("cudaMalloc after it", CALL(cuMemAlloc_v2, cuMemAlloc, 3020)(&pointer, 32 * MIB));
}

int main(int arguments, char **words)
{
    resolve();
    if (arguments == 2 && strcmp(words[1], "where") == 0)
        say_where();
    else
        make_calls();
    return 0;
}
