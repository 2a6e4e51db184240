/* runtime.c: a program of NVIDIA's CUDA runtime, which it is linked with by gcc; prints "CALL ERROR" for each call.
 *
 *     runtime-RELEASE          the runtime is linked in
 *     runtime-shared-RELEASE   the runtime is a library of its own
 *
 * The prototypes are those of the runtime's reference: its wheel's headers are C++ in part.
 */
#include <stddef.h>
#include <stdio.h>

#include "../kernels.h"

#define MIB ((size_t)1 << 20)
#define LAUNCHES 20 /* in each of two rounds, one of them by a graph */

struct dim3 {
    unsigned x, y, z;
};
typedef struct library *library;
typedef struct kernel *kernel;
typedef struct stream *stream;
typedef struct graph *graph;
typedef struct executable *executable;

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **pointer, size_t size);
int cudaFree(void *pointer);
int cudaMemGetInfo(size_t *available, size_t *total);
int cudaMallocAsync(void **pointer, size_t size, stream on);
int cudaFreeAsync(void *pointer, stream on);
int cudaLibraryLoadData(library *made, const void *code, void *options, void **values, unsigned count, void *other_options,
                        void **other_values, unsigned other_count);
int cudaLibraryGetKernel(kernel *found, library of, const char *name);
int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments, size_t shared, stream on);
int cudaStreamCreate(stream *made);
int cudaStreamBeginCapture(stream on, int mode);
int cudaStreamEndCapture(stream on, graph *made);
int cudaGraphInstantiateWithFlags(executable *made, graph of, unsigned long long flags);
int cudaGraphLaunch(executable graph, stream on);
int cudaStreamSynchronize(stream on);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);

static void say(const char *call, int error)
{
    printf("%s %d\n", call, error);
}

static void memory(void)
{
    void *pointer = NULL;
    size_t available, total;
    say("cudaMalloc", cudaMalloc(&pointer, 100 * MIB));
    say("cudaMemGetInfo", cudaMemGetInfo(&available, &total));
    say("cudaFree", cudaFree(pointer));
    say("cudaMallocAsync", cudaMallocAsync(&pointer, 64 * MIB, NULL));
    say("cudaFreeAsync", cudaFreeAsync(pointer, NULL));
}

static int launch(kernel function, stream on)
{
    struct dim3 one = {1, 1, 1};
    return cudaLaunchKernel((const void *)function, one, one, NULL, 0, on);
}

static void launches(void)
{
    library loaded = NULL;
    kernel function = NULL;
    stream on = NULL;
    graph captured = NULL;
    executable made = NULL;
    int error = 0;
    say("cudaLibraryLoadData",
        cudaLibraryLoadData(&loaded, kernel_module("spin_us_10"), NULL, NULL, 0, NULL, NULL, 0));
    say("cudaLibraryGetKernel", cudaLibraryGetKernel(&function, loaded, "spin_us_10"));
    for (int i = 0; i < LAUNCHES - 1 && error == 0; i++)
        error = launch(function, NULL);
    say("cudaLaunchKernel", error);
    say("cudaStreamCreate", cudaStreamCreate(&on));
    say("cudaStreamBeginCapture", cudaStreamBeginCapture(on, 0));
    say("captured", launch(function, on));
    say("cudaStreamEndCapture", cudaStreamEndCapture(on, &captured));
    say("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&made, captured, 0));
    say("cudaGraphLaunch", cudaGraphLaunch(made, on));
    say("cudaStreamSynchronize", cudaStreamSynchronize(on));
    say("cudaDeviceSynchronize", cudaDeviceSynchronize());
}

int main(void)
{
    int devices = 0;
    say("cudaGetDeviceCount", cudaGetDeviceCount(&devices));
    for (int round = 0; round < 2; round++) {
        memory();
        launches();
        say("cudaDeviceReset", cudaDeviceReset());
    }
    return 0;
}
