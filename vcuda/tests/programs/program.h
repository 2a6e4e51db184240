/* program.h: what the programs of the deck share. Each is correct on NVIDIA's driver, and prints "CURESULT MICROSECONDS": the
 * first error, or 0 and how long it took.
 */
#ifndef PROGRAMS_PROGRAM_H
#define PROGRAMS_PROGRAM_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../kernels.h"

static void *library;

#ifdef SHIM_LINKED_IN /* for TSan, which wants the whole program compiled for it */
#include "loading/real_dlsym.h"

void *real_dlsym(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static void *function_named(const char *name)
{
    void *hook = dlsym(RTLD_DEFAULT, name);
    return hook != NULL ? hook : dlsym(library, name);
}
#else
static void *function_named(const char *name)
{
    return dlsym(library, name);
}
#endif
/* Looked up once, as programs do: dlsym takes longer than many of the driver's functions. */
#define CU(name)                                                                \
    ({                                                                          \
        static void *found; /* atomic: threads that look it up find the same */ \
        void *function = __atomic_load_n(&found, __ATOMIC_RELAXED);             \
        if (function == NULL)                                                   \
            function = function_named(#name);                                   \
        __atomic_store_n(&found, function, __ATOMIC_RELAXED);                   \
        (__typeof__(name) *)function;                                           \
    })

static inline uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

/* Ends the program; what waits for ever would keep a driver's own end. */
static inline void done(CUresult result, uint64_t microseconds)
{
    printf("%d %lu\n", (int)result, (unsigned long)microseconds);
    fflush(stdout);
#ifdef SHIM_LINKED_IN
    exit(0); /* TSan reports races at the end */
#endif
    _exit(0);
}

static inline void must(CUresult result)
{
    if (result != CUDA_SUCCESS)
        done(result, 0);
}

static inline void pause_us(long us)
{
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* The primary context of the first GPU, current to this thread. */
static inline CUcontext begin(void)
{
    CUcontext context;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        exit(3);
    must(CU(cuInit)(0));
    must(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    must(CU(cuCtxPushCurrent_v2)(context));
    return context;
}

static inline CUstream stream(unsigned int flags)
{
    CUstream made;
    must(CU(cuStreamCreate)(&made, flags));
    return made;
}

static inline CUevent event(void)
{
    CUevent made;
    must(CU(cuEventCreate)(&made, CU_EVENT_DISABLE_TIMING));
    return made;
}

static inline CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    must(CU(cuModuleLoadData)(&module, kernel_module(name)));
    must(CU(cuModuleGetFunction)(&function, module, name));
    return function;
}

static inline void launch(CUfunction function, CUstream into, void **parameters)
{
    must(CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, into, parameters, NULL));
}

/* What is launched into `later` from now on comes after what is in `first`. */
static inline void order(CUstream first, CUstream later, CUevent between)
{
    must(CU(cuEventRecord)(between, first));
    must(CU(cuStreamWaitEvent)(later, between, 0));
}

/* A word of the host's memory that kernels can wait for. */
static inline uint32_t *word(void)
{
    uint32_t *made;
    must(CU(cuMemAllocHost_v2)((void **)&made, sizeof *made));
    *made = 0;
    return made;
}

/* Whether all in the stream ends before so long; one that waits for ever looks like one that is stuck. */
static inline void wait_for(CUstream from, uint64_t limit_us)
{
    uint64_t until = now_us() + limit_us;
    CUresult result;
    while ((result = CU(cuStreamQuery)(from)) == CUDA_ERROR_NOT_READY && now_us() < until)
        pause_us(20);
    must(result);
}

#define LONG_US 60000000u

/* Threads, waited for by looking, so that a clock which goes on when all sleep can go on. */
struct crew {
    pthread_t threads[64];
    int ended; /* atomic */
    int count;
};

static inline void crew_wait(struct crew *crew)
{
    while (__atomic_load_n(&crew->ended, __ATOMIC_ACQUIRE) != crew->count)
        pause_us(20);
    for (int i = 0; i < crew->count; i++)
        pthread_join(crew->threads[i], NULL);
}

#endif
