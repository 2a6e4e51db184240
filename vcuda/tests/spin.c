/* spin.c: launches simulated kernels for a while, as fast as it is let.
 *
 *     spin SECONDS MICROSECONDS [STREAMS] [graph | completed]     prints "LAUNCHES"
 *
 * The kernels take turns on the streams; with `graph`, eight of them are captured and launched together. With `completed`
 * it launches on one stream, never more than some milliseconds of work ahead, and counts what was completed: a queue of a
 * thousand long kernels would say little of what the GPU did. Writes "ready" and begins when it gets a line.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels.h"

static void *library;
#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static CUgraphExec captured(CUfunction function, CUstream stream)
{
    CUgraph graph;
    CUgraphExec executable = NULL;
    CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (int i = 0; i < 8; i++)
        CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    if (CU(cuStreamEndCapture)(stream, &graph) != CUDA_SUCCESS ||
        CU(cuGraphInstantiateWithFlags)(&executable, graph, 0) != CUDA_SUCCESS)
        exit(5);
    return executable;
}

#define AHEAD 4 /* groups of launches in flight */

/* Launches for so long and returns how many were completed then. */
static unsigned long completed(CUfunction function, CUstream stream, double seconds, int microseconds)
{
    CUevent events[AHEAD];
    unsigned long group = microseconds < 2000 ? 2000ul / (unsigned long)microseconds : 1, begun = 0, done = 0;
    __typeof__(cuLaunchKernel) *launch = CU(cuLaunchKernel);
    __typeof__(cuEventRecord) *record = CU(cuEventRecord);
    __typeof__(cuEventSynchronize) *wait = CU(cuEventSynchronize);
    for (int i = 0; i < AHEAD; i++)
        if (CU(cuEventCreate)(&events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            exit(7);
    for (double end = now() + seconds; now() < end;) {
        if (begun - done == AHEAD && wait(events[done++ % AHEAD]) != CUDA_SUCCESS)
            exit(8);
        for (unsigned long i = 0; i < group; i++)
            if (launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS)
                exit(6);
        if (record(events[begun++ % AHEAD], stream) != CUDA_SUCCESS)
            exit(8);
    }
    return done * group;
}

int main(int count, char **arguments)
{
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUstream streams[16] = {0};
    char name[64];
    int number = count > 3 ? atoi(arguments[3]) : 1;
    unsigned long launches = 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS || CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
        return 3;
    CU(cuCtxPushCurrent_v2)(context);
    snprintf(name, sizeof name, "spin_us_%s", arguments[2]);
    if (CU(cuModuleLoadData)(&module, kernel_module(name)) != CUDA_SUCCESS ||
        CU(cuModuleGetFunction)(&function, module, name) != CUDA_SUCCESS)
        return 4;
    for (int i = 0; i < number; i++)
        CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING);
    CUgraphExec graph = count > 4 && strcmp(arguments[4], "graph") == 0 ? captured(function, streams[0]) : NULL;
    int counting = count > 4 && strcmp(arguments[4], "completed") == 0;
    __typeof__(cuLaunchKernel) *launch = CU(cuLaunchKernel);
    puts("ready");
    fflush(stdout);
    getchar();
    if (counting)
        launches = completed(function, streams[0], atof(arguments[1]), atoi(arguments[2]));
    for (double end = now() + atof(arguments[1]); !counting && now() < end; launches++) {
        CUstream stream = streams[launches % (unsigned long)number];
        CUresult result = graph != NULL ? CU(cuGraphLaunch)(graph, stream)
                                        : launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        if (result != CUDA_SUCCESS)
            return 6;
    }
    printf("%lu\n", launches);
    fflush(stdout);
    _Exit(0); /* what is still queued is not waited for */
}
