/* launches.c: what a program sees of how its launches are admitted.
 *
 *     launches longest KERNEL COUNT    launches so many one by one; prints the microseconds that the longest took
 *     launches apart KERNEL COUNT      the same, each after the one before it has ended
 *     launches ahead KERNEL COUNT      launches so many; prints the most that were in flight at one time
 *     launches together KERNEL COUNT THREADS STREAMS
 *                                      the same by so many threads, each with so many streams
 *     launches elsewhere KERNEL COUNT  like ahead, into a stream of a context that is not current
 *     launches devices MILLISECONDS    kernels of 0.1 ms on every device for so long, on each by a thread of its own
 *     launches flag                    a kernel that spins until the host says go, which it does after a second launch:
 *                                      prints "RESULT MICROSECONDS", of the whole and of the second launch
 *     launches behind COUNT            the same with so many launches behind it: prints RESULT of the whole
 *     launches captured                captures on one stream, in the strictest mode, while another thread launches on
 *                                      another: prints "RESULT NODES"
 */
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

#include "kernels.h"

#define CAPTURED 100
#define MOST_AHEAD 4096

static void *library;
#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

static CUcontext context;
static CUstream streams[2];
static int done; /* atomic: 1 once the other thread need not launch any more */
static unsigned long launched; /* by it; atomic */

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void begin(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS || CU(cuDevicePrimaryCtxRetain)(&context, 0) != CUDA_SUCCESS ||
        CU(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        exit(3);
    for (int i = 0; i < 2; i++)
        if (CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
            exit(3);
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

/* Microseconds that a launch took. */
static uint64_t launch(CUfunction function, CUstream stream, void **parameters)
{
    uint64_t before = now_us();
    if (CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) != CUDA_SUCCESS)
        exit(5);
    return now_us() - before;
}

static int longest(const char *name, int count, bool apart)
{
    CUfunction function = kernel(name);
    uint64_t most = 0;
    for (int i = 0; i < count; i++) {
        uint64_t took = launch(function, streams[0], NULL);
        most = took > most ? took : most;
        if (apart && CU(cuStreamSynchronize)(streams[0]) != CUDA_SUCCESS)
            exit(5);
    }
    printf("%lu\n", (unsigned long)most);
    return 0;
}

/* The first launches count, too: nothing is known yet of how long the kernel takes. */
static int ahead(const char *name, int count, bool elsewhere)
{
    static CUevent events[MOST_AHEAD];
    CUcontext own = context;
    CUstream stream = streams[0];
    if (count > MOST_AHEAD || (elsewhere && (CU(cuCtxCreate_v2)(&own, 0, 0) != CUDA_SUCCESS ||
                                             CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)))
        return 2;
    CUfunction function = kernel(name);
    int ended = 0, most = 0;
    for (int i = 0; i < count; i++) {
        CU(cuCtxSetCurrent)(context);
        launch(function, stream, NULL);
        CU(cuCtxSetCurrent)(own);
        if (CU(cuEventCreate)(&events[i], CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS ||
            CU(cuEventRecord)(events[i], stream) != CUDA_SUCCESS)
            return 6;
        while (ended < i && CU(cuEventQuery)(events[ended]) == CUDA_SUCCESS)
            ended++;
        most = i + 1 - ended > most ? i + 1 - ended : most;
    }
    printf("%d\n", most);
    return 0;
}

/* What several threads have in flight: a thread that has launched looks at the events of all, under `lock`. */
static struct {
    pthread_mutex_t lock;
    CUfunction function;
    CUevent events[MOST_AHEAD];
    bool ended[MOST_AHEAD];
    int count, streams, begun, most;
    int finished; /* threads; atomic */
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void look(CUstream stream)
{
    int in_flight = 0;
    pthread_mutex_lock(&shared.lock);
    if (shared.begun < MOST_AHEAD && CU(cuEventCreate)(&shared.events[shared.begun], CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
        CU(cuEventRecord)(shared.events[shared.begun], stream) == CUDA_SUCCESS)
        shared.begun++;
    for (int i = 0; i < shared.begun; i++) {
        shared.ended[i] = shared.ended[i] || CU(cuEventQuery)(shared.events[i]) == CUDA_SUCCESS;
        in_flight += !shared.ended[i];
    }
    shared.most = in_flight > shared.most ? in_flight : shared.most;
    pthread_mutex_unlock(&shared.lock);
}

static void *one_of_many(void *unused)
{
    CUstream own[8];
    CU(cuCtxPushCurrent_v2)(context);
    for (int i = 0; i < shared.streams; i++)
        CU(cuStreamCreate)(&own[i], CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < shared.count; i++) {
        launch(shared.function, own[i % shared.streams], NULL);
        look(own[i % shared.streams]);
    }
    __atomic_add_fetch(&shared.finished, 1, __ATOMIC_RELEASE);
    return unused;
}

static int together(const char *name, int count, int threads, int own)
{
    pthread_t ids[16];
    if (count * threads > MOST_AHEAD || threads > 16 || own > 8)
        return 2;
    shared.function = kernel(name);
    shared.count = count;
    shared.streams = own;
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, one_of_many, NULL);
    while (__atomic_load_n(&shared.finished, __ATOMIC_ACQUIRE) != threads)
        nanosleep(&(struct timespec){0, 500000}, NULL); /* a clock that only sleepers move would stop at a join */
    printf("%d\n", shared.most);
    return 0;
}

struct part {
    int ordinal;
    uint64_t end_us;
};

static void *on_one_device(void *argument)
{
    const struct part *part = argument;
    CUdevice device;
    CUcontext own;
    CUstream stream;
    if (CU(cuDeviceGet)(&device, part->ordinal) != CUDA_SUCCESS ||
        CU(cuDevicePrimaryCtxRetain)(&own, device) != CUDA_SUCCESS || CU(cuCtxPushCurrent_v2)(own) != CUDA_SUCCESS ||
        CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        exit(3);
    CUfunction function = kernel("spin_us_100");
    while (now_us() < part->end_us)
        launch(function, stream, NULL);
    __atomic_add_fetch(&shared.finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int devices(int milliseconds)
{
    pthread_t threads[8];
    struct part parts[8];
    int count = 0;
    if (CU(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count > 8)
        return 2;
    for (int i = 0; i < count; i++) {
        parts[i] = (struct part){i, now_us() + (uint64_t)milliseconds * 1000u};
        pthread_create(&threads[i], NULL, on_one_device, &parts[i]);
    }
    while (__atomic_load_n(&shared.finished, __ATOMIC_ACQUIRE) != count)
        nanosleep(&(struct timespec){0, 500000}, NULL);
    printf("%d\n", count);
    return 0;
}

static int flag(void)
{
    uint32_t *word;
    if (CU(cuMemAllocHost_v2)((void **)&word, sizeof *word) != CUDA_SUCCESS)
        return 6;
    *word = 0;
    launch(kernel("flag"), streams[0], (void *[]){&word});
    uint64_t took = launch(kernel("spin_us_10"), streams[1], NULL);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    printf("%d %lu\n", (int)CU(cuStreamSynchronize)(streams[0]), (unsigned long)took);
    return 0;
}

static int behind(int count)
{
    uint32_t *word;
    CUfunction function = kernel("spin_us_10");
    if (CU(cuMemAllocHost_v2)((void **)&word, sizeof *word) != CUDA_SUCCESS)
        return 6;
    *word = 0;
    launch(kernel("flag"), streams[0], (void *[]){&word});
    for (int i = 0; i < count; i++)
        launch(function, streams[0], NULL);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    printf("%d\n", (int)CU(cuStreamSynchronize)(streams[0]));
    return 0;
}

static void *other(void *function)
{
    CU(cuCtxPushCurrent_v2)(context);
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) == 0) {
        launch(function, streams[0], NULL);
        __atomic_add_fetch(&launched, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static int captured(void)
{
    CUfunction function = kernel("spin_us_100");
    CUgraph graph = NULL;
    size_t nodes = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, other, function);
    CU(cuStreamBeginCapture_v2)(streams[1], CU_STREAM_CAPTURE_MODE_GLOBAL);
    unsigned long before = __atomic_load_n(&launched, __ATOMIC_ACQUIRE);
    for (int i = 0; i < CAPTURED; i++) {
        launch(function, streams[1], NULL);
        nanosleep(&(struct timespec){0, 500000}, NULL);
    }
    while (__atomic_load_n(&launched, __ATOMIC_ACQUIRE) < before + CAPTURED)
        nanosleep(&(struct timespec){0, 500000}, NULL);
    CUresult result = CU(cuStreamEndCapture)(streams[1], &graph);
    if (result == CUDA_SUCCESS)
        CU(cuGraphGetNodes)(graph, NULL, &nodes);
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    printf("%d %zu\n", (int)result, nodes);
    return 0;
}

int main(int count, char **arguments)
{
    begin();
    if (count == 4 && strcmp(arguments[1], "longest") == 0)
        return longest(arguments[2], atoi(arguments[3]), false);
    if (count == 4 && strcmp(arguments[1], "apart") == 0)
        return longest(arguments[2], atoi(arguments[3]), true);
    if (count == 4 && strcmp(arguments[1], "ahead") == 0)
        return ahead(arguments[2], atoi(arguments[3]), false);
    if (count == 4 && strcmp(arguments[1], "elsewhere") == 0)
        return ahead(arguments[2], atoi(arguments[3]), true);
    if (count == 6 && strcmp(arguments[1], "together") == 0)
        return together(arguments[2], atoi(arguments[3]), atoi(arguments[4]), atoi(arguments[5]));
    if (count == 3 && strcmp(arguments[1], "devices") == 0)
        return devices(atoi(arguments[2]));
    if (count == 3 && strcmp(arguments[1], "behind") == 0)
        return behind(atoi(arguments[2]));
    if (count == 2 && strcmp(arguments[1], "flag") == 0)
        return flag();
    return count == 2 && strcmp(arguments[1], "captured") == 0 ? captured() : 2;
}
