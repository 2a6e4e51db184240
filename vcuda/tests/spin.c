/* spin.c: launches simulated kernels for a while, as fast as it is let.
 *
 *     spin SECONDS MICROSECONDS [STREAMS [graph] [uneven] [contexts] [beside [idle]] [completed]]     prints "LAUNCHES"
 *
 * The kernels take turns on the streams; with `graph`, eight of them are captured and launched together. With `uneven`, three
 * of each three hundred take a hundred times as long, one behind the other. With `contexts` a thread for each stream launches
 * into it, in a context of its own, for ever. With `beside` a stream of another context waits for the host as long; with `idle`
 * that is all it does. With `completed`
 * it is never more than some milliseconds of work ahead on each stream, and counts what was completed: a queue of a
 * thousand long kernels would say little of what the GPU did. It then prints how many were after each whole second.
 * Writes "ready" and begins when it gets a line.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
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

/* So many blocks, each with so much shared memory, that no other kernel finds room beside them; each has one warp, and so the
 * same speed as a block alone. */
#define SHARED_BYTES 49152u /* what a block may have without asking for more */
#define WARP 32u

static unsigned int blocks = 1;

static void take_the_whole_gpu(void)
{
    int multiprocessors = 1, bytes = 0, reserved = 0;
    CU(cuDeviceGetAttribute)(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
    CU(cuDeviceGetAttribute)(&bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 0);
    CU(cuDeviceGetAttribute)(&reserved, CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 0);
    unsigned int each = (unsigned int)bytes / (SHARED_BYTES + (unsigned int)reserved);
    blocks = (unsigned int)multiprocessors * (each != 0 ? each : 1);
}

static CUresult launch_one(__typeof__(cuLaunchKernel) *call, CUfunction function, CUstream stream)
{
    return call(function, blocks, 1, 1, WARP, 1, 1, SHARED_BYTES, stream, NULL, NULL);
}

static CUgraphExec captured(CUfunction function, CUstream stream)
{
    CUgraph graph;
    CUgraphExec executable = NULL;
    CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (int i = 0; i < 8; i++)
        launch_one(CU(cuLaunchKernel), function, stream);
    if (CU(cuStreamEndCapture)(stream, &graph) != CUDA_SUCCESS ||
        CU(cuGraphInstantiateWithFlags)(&executable, graph, 0) != CUDA_SUCCESS)
        exit(5);
    return executable;
}

/* What is launched, and where. */
struct work {
    CUfunction function;
    CUfunction longer; /* NULL: all are alike */
    CUgraphExec graph; /* NULL: the function alone */
    CUstream streams[64];
    unsigned long stream_count;
    unsigned long group; /* launches before it is looked how far the GPU has come */
};

/* The next launch after so many, into a stream. */
static void launch(const struct work *work, unsigned long number, CUstream stream)
{
    static __typeof__(cuLaunchKernel) *one;
    static __typeof__(cuGraphLaunch) *together;
    if (one == NULL) {
        one = CU(cuLaunchKernel);
        together = CU(cuGraphLaunch);
    }
    CUfunction function = work->longer != NULL && number % 300 < 3 ? work->longer : work->function;
    CUresult result =
        work->graph != NULL ? together(work->graph, stream) : launch_one(one, function, stream);
    if (result != CUDA_SUCCESS)
        exit(6);
}

#define AHEAD 4 /* groups of launches in flight */

/* Prints what had been completed at each mark since the last look, as if it had come in evenly between the looks. */
struct marks {
    double next, every, end;
    double looked;
    unsigned long before;
};

static void look(struct marks *marks, unsigned long done)
{
    double moment = now();
    for (; marks->next <= moment && marks->next <= marks->end; marks->next += marks->every) {
        double part = (marks->next - marks->looked) / (moment - marks->looked);
        printf("%.1f ", (double)marks->before + part * (double)(done - marks->before));
    }
    marks->looked = moment;
    marks->before = done;
}

/* Launches for so many seconds, or a part of one, and prints what was completed after each. A group goes to one stream. */
static void completed(const struct work *work, double seconds)
{
    CUevent events[AHEAD];
    unsigned long begun = 0, done = 0, launches = 0;
    __typeof__(cuEventRecord) *record = CU(cuEventRecord);
    __typeof__(cuEventSynchronize) *wait = CU(cuEventSynchronize);
    __typeof__(cuEventQuery) *query = CU(cuEventQuery);
    for (int i = 0; i < AHEAD; i++)
        if (CU(cuEventCreate)(&events[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            exit(7);
    double start = now(), every = seconds < 1 ? seconds : 1;
    struct marks marks = {start + every, every, start + seconds + every / 2, start, 0};
    while (marks.next <= marks.end) {
        if (begun - done == AHEAD && wait(events[done++ % AHEAD]) != CUDA_SUCCESS)
            exit(8);
        CUstream stream = work->streams[begun % work->stream_count];
        for (unsigned long i = 0; i < work->group; i++)
            launch(work, launches++, stream);
        if (record(events[begun % AHEAD], stream) != CUDA_SUCCESS)
            exit(8);
        begun++;
        while (done < begun && query(events[done % AHEAD]) == CUDA_SUCCESS)
            done++;
        look(&marks, done * work->group);
    }
    puts("");
}

static bool asked(int count, char **arguments, const char *word)
{
    for (int i = 4; i < count; i++)
        if (strcmp(arguments[i], word) == 0)
            return true;
    return false;
}

static CUfunction kernel(unsigned long microseconds)
{
    CUmodule module;
    CUfunction function = NULL;
    char name[64];
    snprintf(name, sizeof name, "spin_us_%lu", microseconds);
    if (CU(cuModuleLoadData)(&module, kernel_module(name)) != CUDA_SUCCESS ||
        CU(cuModuleGetFunction)(&function, module, name) != CUDA_SUCCESS)
        exit(4);
    return function;
}

static void *in_its_own_context(void *microseconds)
{
    CUcontext context;
    CUstream stream;
    if (CU(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS || CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        exit(9);
    CUfunction function = kernel((unsigned long)(size_t)microseconds);
    while (launch_one(CU(cuLaunchKernel), function, stream) == CUDA_SUCCESS)
        ;
    exit(6);
}

/* Nothing writes the word that the stream waits for. */
static void wait_for_ever(void)
{
    CUcontext context, own;
    CUstream stream;
    void *word;
    if (CU(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS || CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        CU(cuMemAllocHost_v2)(&word, 8) != CUDA_SUCCESS)
        exit(9);
    memset(word, 0, 8);
    CUfunction function = kernel(10);
    if (CU(cuStreamWaitValue32_v2)(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ) != CUDA_SUCCESS ||
        launch_one(CU(cuLaunchKernel), function, stream) != CUDA_SUCCESS || CU(cuCtxPopCurrent_v2)(&own) != CUDA_SUCCESS)
        exit(6);
}

int main(int count, char **arguments)
{
    CUcontext context;
    pthread_t thread;
    struct work work = {.stream_count = count > 3 ? strtoul(arguments[3], NULL, 10) : 1};
    double seconds = count > 2 ? atof(arguments[1]) : 0;
    unsigned long microseconds = count > 2 ? strtoul(arguments[2], NULL, 10) : 0, launches = 0;
    if (microseconds == 0 || work.stream_count == 0 || work.stream_count > 64)
        return 2;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS || CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS)
        return 3;
    CU(cuCtxPushCurrent_v2)(context);
    take_the_whole_gpu();
    work.function = kernel(microseconds);
    if (asked(count, arguments, "uneven"))
        work.longer = kernel(100 * microseconds);
    for (unsigned long i = 0; i < work.stream_count; i++)
        CU(cuStreamCreate)(&work.streams[i], CU_STREAM_NON_BLOCKING);
    if (asked(count, arguments, "graph"))
        work.graph = captured(work.function, work.streams[0]);
    work.group = work.graph == NULL && microseconds < 2000 ? 2000 / microseconds : 1;
    puts("ready");
    fflush(stdout);
    getchar();
    for (unsigned long i = 1; asked(count, arguments, "contexts") && i < work.stream_count; i++)
        pthread_create(&thread, NULL, in_its_own_context, (void *)(size_t)microseconds);
    if (asked(count, arguments, "contexts"))
        in_its_own_context((void *)(size_t)microseconds);
    if (asked(count, arguments, "beside"))
        wait_for_ever();
    while (asked(count, arguments, "idle"))
        nanosleep(&(struct timespec){1, 0}, NULL);
    if (asked(count, arguments, "completed"))
        completed(&work, seconds);
    else {
        for (double end = now() + seconds; now() < end; launches++)
            launch(&work, launches, work.streams[launches % work.stream_count]);
        printf("%lu\n", launches);
    }
    fflush(stdout);
    _Exit(0); /* what is still queued is not waited for */
}
