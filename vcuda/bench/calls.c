/* calls.c: how long calls take. Prints the median over chunks of their mean, and the 99.9th percentile, both in ns.
 *
 *     calls launch CHUNKS | alloc CHUNKS | init
 *
 * `launch` times kernels of a microsecond on one stream, `alloc` pairs of allocating and freeing 1 MiB.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../tests/kernels.h"

#define CHUNK 500

static void *library;
#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static __typeof__(cuLaunchKernel) *launch;
static __typeof__(cuMemAlloc_v2) *allocate;
static __typeof__(cuMemFree_v2) *release;
static CUfunction function;
static CUstream stream;

static void once(int allocating)
{
    CUdeviceptr pointer;
    if (!allocating && launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS)
        exit(5);
    if (allocating && (allocate(&pointer, 1 << 20) != CUDA_SUCCESS || release(pointer) != CUDA_SUCCESS))
        exit(6);
}

/* Outside the timing: a GPU works off launches more slowly than they are made, and a full queue would be timed. */
static void drain(int allocating)
{
    if (!allocating)
        CU(cuStreamSynchronize)(stream);
}

static void prepare(void)
{
    CUcontext context;
    CUmodule module;
    if (CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
        exit(4);
    CU(cuCtxPushCurrent_v2)(context);
    launch = CU(cuLaunchKernel);
    allocate = CU(cuMemAlloc_v2);
    release = CU(cuMemFree_v2);
    CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (CU(cuModuleLoadData) != NULL) {
        CU(cuModuleLoadData)(&module, kernel_module("spin_us_1"));
        CU(cuModuleGetFunction)(&function, module, "spin_us_1");
    }
}

int main(int count, char **arguments)
{
    int allocating = strcmp(arguments[1], "alloc") == 0, chunks = count > 2 ? atoi(arguments[2]) : 1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS)
        return 3;
    if (count < 3)
        return 0;
    prepare();
    double *means = calloc((size_t)chunks, sizeof *means), *each = calloc((size_t)chunks * CHUNK, sizeof *each);
    for (int i = 0; i < 10 * CHUNK; i++) {
        if (i % CHUNK == 0)
            drain(allocating);
        once(allocating);
    }
    for (int i = 0; i < chunks; i++) {
        drain(allocating);
        uint64_t began = now();
        for (int j = 0; j < CHUNK; j++)
            once(allocating);
        means[i] = (double)(now() - began) / CHUNK;
    }
    for (int i = 0; i < chunks * CHUNK; i++) {
        if (i % CHUNK == 0)
            drain(allocating);
        uint64_t began = now();
        once(allocating);
        each[i] = (double)(now() - began);
    }
    qsort(means, (size_t)chunks, sizeof *means, ascending);
    qsort(each, (size_t)chunks * CHUNK, sizeof *each, ascending);
    printf("%.2f %.0f\n", means[chunks / 2], each[(size_t)((double)chunks * CHUNK * 0.999)]);
    fflush(stdout);
    _Exit(0);
}
