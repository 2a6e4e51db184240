/* steps.c: a program that works in steps, as training and inference do: kernels of several lengths, then a pause.
 *
 *     steps SECONDS STREAMS PAUSE_US KERNEL COUNT [KERNEL COUNT]... [each] [wait]
 *
 * A step launches so many of each kernel, on one stream after the other; with 0 streams on the thread's own default stream. `each`: the pause is behind every launch and not
 * behind the step. `wait`: a step waits until the GPU is through with it. Writes "ready", begins when it gets a line, and waits
 * at its end for all that it launched.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels.h"

#define MOST 8

static void *library;
#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

struct work {
    CUfunction functions[MOST];
    int counts[MOST], kinds;
    CUstream streams[MOST];
    int stream_count;
    uint64_t pause_us;
    bool each, wait;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rest(uint64_t us)
{
    if (us != 0)
        nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

static CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function = NULL;
    if (CU(cuModuleLoadData)(&module, kernel_module(name)) != CUDA_SUCCESS ||
        CU(cuModuleGetFunction)(&function, module, name) != CUDA_SUCCESS)
        exit(4);
    return function;
}

static void step(const struct work *work)
{
    int number = 0;
    for (int kind = 0; kind < work->kinds; kind++)
        for (int i = 0; i < work->counts[kind]; i++) {
            CUstream stream = work->streams[number++ % work->stream_count];
            if (CU(cuLaunchKernel)(work->functions[kind], 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS)
                exit(5);
            if (work->each)
                rest(work->pause_us);
        }
    if (work->wait)
        CU(cuCtxSynchronize)();
    if (!work->each)
        rest(work->pause_us);
}

int main(int count, char **arguments)
{
    CUcontext context;
    struct work work = {.kinds = 0};
    if (count < 6)
        return 2;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS || CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
        return 3;
    CU(cuCtxPushCurrent_v2)(context);
    double seconds = atof(arguments[1]);
    work.stream_count = atoi(arguments[2]);
    work.pause_us = strtoull(arguments[3], NULL, 10);
    if (work.stream_count < 0 || work.stream_count > MOST)
        return 2;
    if (work.stream_count == 0)
        work.streams[work.stream_count++] = CU_STREAM_PER_THREAD;
    else
        for (int i = 0; i < work.stream_count; i++)
            CU(cuStreamCreate)(&work.streams[i], CU_STREAM_NON_BLOCKING);
    for (int i = 4; i < count; i++) {
        work.each |= strcmp(arguments[i], "each") == 0;
        work.wait |= strcmp(arguments[i], "wait") == 0;
        if (strncmp(arguments[i], "spin_", 5) == 0 && i + 1 < count && work.kinds < MOST) {
            work.functions[work.kinds] = kernel(arguments[i]);
            work.counts[work.kinds++] = atoi(arguments[i + 1]);
        }
    }
    puts("ready");
    fflush(stdout);
    getchar();
    for (double end = now() + seconds; now() < end;)
        step(&work);
    return CU(cuCtxSynchronize)() != CUDA_SUCCESS;
}
