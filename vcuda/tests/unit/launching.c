/* launching.c: threads that launch, capture, allocate in streams and end these at once, beside one that makes and ends
 * contexts; run under TSan.
 *
 *     launching ROUNDS      ends with 0; the shim is linked in, the driver found by name
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

#include "../kernels.h"
#include "loading/real_dlsym.h"

#define THREADS 4
#define LAUNCHES 400 /* of a thread in each round */

static void *library;
#define CU(name) ((__typeof__(name) *)dlsym(library, #name)) /* what has no hook */

static CUcontext shared;
static CUfunction function;
static int rounds = 10;

void *real_dlsym(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static void must(CUresult result)
{
    if (result != CUDA_SUCCESS)
        abort();
}

static void launch(CUstream stream)
{
    must(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

/* From the pool, and plain memory that a stream frees. */
static void allocate(CUstream stream, size_t bytes)
{
    CUdeviceptr pooled, plain;
    must(cuMemAllocAsync(&pooled, bytes, stream));
    must(cuMemFreeAsync(pooled, stream));
    must(cuMemAlloc_v2(&plain, bytes));
    must(cuMemFreeAsync(plain, stream));
}

static void *launches(void *unused)
{
    CUstream streams[2];
    CUgraph graph;
    must(CU(cuCtxPushCurrent_v2)(shared));
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 2; i++)
            must(CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
        for (int i = 0; i < LAUNCHES; i++) {
            launch(streams[i % 2]);
            if (i % 8 == 0)
                allocate(streams[i % 2], (size_t)(i + 1) << 14);
        }
        must(cuStreamBeginCapture_v2(streams[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        launch(streams[0]);
        launch(streams[1]);
        must(cuStreamEndCapture(streams[0], &graph));
        for (int i = 0; i < 2; i++)
            must(cuStreamDestroy_v2(streams[i]));
    }
    return unused;
}

static void *contexts(void *unused)
{
    CUcontext own;
    CUmodule module;
    CUfunction another;
    for (int round = 0; round < rounds; round++) {
        must(cuCtxCreate_v2(&own, 0, 0));
        must(CU(cuModuleLoadData)(&module, kernel_module("spin_us_1")));
        must(CU(cuModuleGetFunction)(&another, module, "spin_us_1"));
        for (int i = 0; i < LAUNCHES; i++)
            must(cuLaunchKernel(another, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
        for (int i = 0; i < 10; i++)
            allocate(NULL, 1 << 20);
        must(cuCtxDestroy_v2(own));
    }
    return unused;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS + 1];
    CUmodule module;
    rounds = count > 1 ? atoi(arguments[1]) : rounds;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 3;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&shared, 0));
    must(CU(cuCtxPushCurrent_v2)(shared));
    must(CU(cuModuleLoadData)(&module, kernel_module("spin_us_1")));
    must(CU(cuModuleGetFunction)(&function, module, "spin_us_1"));
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, launches, NULL);
    pthread_create(&threads[THREADS], NULL, contexts, NULL);
    for (int i = 0; i <= THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
