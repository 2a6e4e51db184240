/* data_frames.c: many threads that allocate in their streams' order, compute and free, as data frames do by cudaMallocAsync.
 *     data_frames THREADS ROUNDS
 */
#include "program.h"

static struct crew crew;
static CUcontext context;
static CUfunction work;
static int rounds;

static void *queries(void *number)
{
    must(CU(cuCtxPushCurrent_v2)(context));
    CUstream own = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr columns[4];
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < 4; i++)
            must(CU(cuMemAllocAsync)(&columns[i], ((size_t)1 << 20) * (size_t)(1 + (i + round + (int)(intptr_t)number) % 5),
                                     own));
        launch(work, own, NULL);
        for (int i = 0; i < 4; i++)
            must(CU(cuMemFreeAsync)(columns[i], own));
        if (round % 8 == 7)
            wait_for(own, LONG_US);
    }
    wait_for(own, LONG_US);
    must(CU(cuStreamDestroy_v2)(own));
    __atomic_add_fetch(&crew.ended, 1, __ATOMIC_ACQ_REL);
    return NULL;
}

int main(int count, char **arguments)
{
    int threads = count > 1 && atoi(arguments[1]) <= 32 ? atoi(arguments[1]) : 8;
    rounds = count > 2 ? atoi(arguments[2]) : 50;
    context = begin();
    work = kernel("spin_us_200");
    uint64_t from = now_us();
    for (crew.count = 0; crew.count < threads; crew.count++)
        pthread_create(&crew.threads[crew.count], NULL, queries, (void *)(intptr_t)crew.count);
    crew_wait(&crew);
    done(CUDA_SUCCESS, now_us() - from);
}
