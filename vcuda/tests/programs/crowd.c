/* crowd.c: threads that begin at once, on several GPUs: each launches, allocates and frees in a stream of its own.
 *
 *     crowd THREADS GPUS LAUNCHES
 */
#include "program.h"

#define MOST_GPUS 8

static CUcontext contexts[MOST_GPUS];
static CUfunction works[MOST_GPUS];
static int gpus, launches;
static pthread_barrier_t all_ready;
static struct crew crew;

static void *one_of_them(void *number)
{
    int gpu = (int)(uintptr_t)number % gpus;
    CUdeviceptr memory;
    must(CU(cuCtxPushCurrent_v2)(contexts[gpu]));
    CUstream mine = stream(CU_STREAM_NON_BLOCKING);
    pthread_barrier_wait(&all_ready);
    for (int i = 0; i < launches; i++) {
        launch(works[gpu], mine, NULL);
        must(CU(cuMemAllocAsync)(&memory, 1 << 20, mine));
        must(CU(cuMemFreeAsync)(memory, mine));
        must(CU(cuMemAlloc_v2)(&memory, 4 << 20));
        must(CU(cuMemFree_v2)(memory));
    }
    wait_for(mine, LONG_US);
    must(CU(cuStreamDestroy_v2)(mine));
    __atomic_add_fetch(&crew.ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    crew.count = atoi(arguments[1]);
    gpus = atoi(arguments[2]);
    launches = atoi(arguments[3]);
    begin();
    for (int i = 0; i < gpus; i++) {
        must(CU(cuDevicePrimaryCtxRetain)(&contexts[i], i));
        must(CU(cuCtxSetCurrent)(contexts[i]));
        works[i] = kernel("spin_us_100");
    }
    must(pthread_barrier_init(&all_ready, NULL, (unsigned)crew.count) != 0);
    uint64_t began = now_us();
    for (int i = 0; i < crew.count; i++)
        must(pthread_create(&crew.threads[i], NULL, one_of_them, (void *)(uintptr_t)i) != 0);
    crew_wait(&crew);
    done(CUDA_SUCCESS, now_us() - began);
}
