/* calls.c: how long calls take. Prints the median over chunks of their mean and the 99.9th percentile, both in ns, and how
 * often the shim has called the driver for 1,000 of them, where that counts (null_driver.c).
 *
 *     calls launch CHUNKS | launches CHUNKS | alternating CHUNKS | destroyed CHUNKS | alloc CHUNKS | async CHUNKS [THREADS] | init
 *
 * `launch` times kernels of a microsecond on one stream, `launches` the same on the default stream, `alternating` on two
 * streams in turn whose handles (which only an empty driver takes) lie as those of streams made one after the other,
 * `destroyed` after a stream was destroyed that captured, `alloc` pairs of allocating and freeing 1 MiB, `async` the same in a stream's order, by
 * several threads at once.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
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
static __typeof__(cuMemAllocAsync) *allocate_async;
static __typeof__(cuMemFreeAsync) *release_async;
static CUfunction function;
static CUstream stream, second; /* the same, or launched into by turns */
static CUcontext context;

enum what { LAUNCH, ALLOC, ASYNC };

static void once(enum what what)
{
    CUdeviceptr pointer;
    if (what == ASYNC && (allocate_async(&pointer, 1 << 20, stream) != CUDA_SUCCESS || release_async(pointer, stream) != CUDA_SUCCESS))
        exit(7);
    if (what == LAUNCH && launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS)
        exit(5);
    if (what == LAUNCH) {
        CUstream next = second;
        second = stream;
        stream = next;
    }
    if (what == ALLOC && (allocate(&pointer, 1 << 20) != CUDA_SUCCESS || release(pointer) != CUDA_SUCCESS))
        exit(6);
}

/* Outside the timing: a GPU works off launches more slowly than they are made, and a full queue would be timed. */
static void drain(enum what what)
{
    if (what == LAUNCH)
        CU(cuStreamSynchronize)(stream);
}

static void prepare(void)
{
    CUmodule module;
    if (CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
        exit(4);
    CU(cuCtxPushCurrent_v2)(context);
    launch = CU(cuLaunchKernel);
    allocate = CU(cuMemAlloc_v2);
    release = CU(cuMemFree_v2);
    allocate_async = CU(cuMemAllocAsync);
    release_async = CU(cuMemFreeAsync);
    CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    if (CU(cuModuleLoadData) != NULL) {
        CU(cuModuleLoadData)(&module, kernel_module("spin_us_1"));
        CU(cuModuleGetFunction)(&function, module, "spin_us_1");
    }
}

static void capture_and_destroy(void)
{
    CUstream captures;
    if (CU(cuStreamCreate)(&captures, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        CU(cuStreamBeginCapture_v2)(captures, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS ||
        CU(cuStreamDestroy_v2)(captures) != CUDA_SUCCESS)
        exit(8);
}

struct figures {
    int chunks;
    enum what what;
    double mean, tail; /* ns: the median over chunks, and the 99.9th percentile */
};

static void *measure(void *argument)
{
    struct figures *figures = argument;
    int chunks = figures->chunks;
    enum what what = figures->what;
    double *means = calloc((size_t)chunks, sizeof *means), *each = calloc((size_t)chunks * CHUNK, sizeof *each);
    CU(cuCtxPushCurrent_v2)(context);
    for (int i = 0; i < 10 * CHUNK; i++) {
        if (i % CHUNK == 0)
            drain(what);
        once(what);
    }
    for (int i = 0; i < chunks; i++) {
        drain(what);
        uint64_t began = now();
        for (int j = 0; j < CHUNK; j++)
            once(what);
        means[i] = (double)(now() - began) / CHUNK;
    }
    for (int i = 0; i < chunks * CHUNK; i++) {
        if (i % CHUNK == 0)
            drain(what);
        uint64_t began = now();
        once(what);
        each[i] = (double)(now() - began);
    }
    qsort(means, (size_t)chunks, sizeof *means, ascending);
    qsort(each, (size_t)chunks * CHUNK, sizeof *each, ascending);
    figures->mean = means[chunks / 2];
    figures->tail = each[(size_t)((double)chunks * CHUNK * 0.999)];
    return NULL;
}

int main(int count, char **arguments)
{
    const char *name = arguments[1];
    enum what what = strcmp(name, "alloc") == 0 ? ALLOC : strcmp(name, "async") == 0 ? ASYNC : LAUNCH;
    int number = count > 3 ? atoi(arguments[3]) : 1;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS)
        return 3;
    if (count < 3)
        return 0;
    prepare();
    if (strcmp(name, "launches") == 0)
        stream = NULL;
    second = stream;
    if (strcmp(name, "alternating") == 0) {
        stream = (CUstream)(uintptr_t)0x5500001000; /* 128 bytes times a power of two apart */
        second = (CUstream)(uintptr_t)0x5500005000;
    }
    if (strcmp(name, "destroyed") == 0)
        capture_and_destroy();
    unsigned long *called = dlsym(library, "null_driver_calls"), before = called != NULL ? *called : 0;
    struct figures *figures = calloc((size_t)number, sizeof *figures), sum = {0};
    pthread_t *threads = calloc((size_t)number, sizeof *threads);
    for (int i = 0; i < number; i++) {
        figures[i] = (struct figures){.chunks = atoi(arguments[2]), .what = what};
        pthread_create(&threads[i], NULL, measure, &figures[i]);
    }
    for (int i = 0; i < number; i++) {
        pthread_join(threads[i], NULL);
        sum.mean += figures[i].mean / number;
        sum.tail += figures[i].tail / number;
    }
    unsigned long calls = called != NULL ? *called - before : 0;
    printf("%.2f %.0f %lu\n", sum.mean, sum.tail, calls * 1000 / (2ul * CHUNK * (unsigned)atoi(arguments[2]) * (unsigned)number));
    fflush(stdout);
    _Exit(0);
}
