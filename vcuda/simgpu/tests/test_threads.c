/* Many threads in one process, on a fast clock: made to be run under the thread sanitizer too. */
#include "check.h"

#include <pthread.h>

enum { THREADS = 8, ROUNDS = 150 };

static CUcontext context;
static CUfunction function;

static void *work(void *unused)
{
    (void)unused;
    CUstream stream = NULL;
    CUevent event = NULL;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    for (int i = 0; i < ROUNDS; i++) {
        CUdeviceptr plain = 0, pooled = 0;
        OK(cuMemAlloc(&plain, (size_t)(i % 7 + 1) << 19));
        OK(cuMemAllocAsync(&pooled, 1 << 20, stream));
        launch(function, stream);
        OK(cuMemcpyHtoDAsync(plain, &plain, 4096, stream));
        OK(cuEventRecord(event, stream));
        OK(cuEventSynchronize(event));
        OK(cuMemFreeAsync(pooled, stream));
        OK(cuMemFree(plain));
    }
    OK(cuStreamSynchronize(stream));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(stream));
    return NULL;
}

static void threads_share_a_context_and_leave_nothing_behind(void)
{
    pthread_t threads[THREADS];
    size_t before = 0, after = 0, total = 0;
    OK(cuMemGetInfo(&before, &total));
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    OK(cuCtxSynchronize());
    OK(cuMemGetInfo(&after, &total));
    CHECK(before == after);
}

static void ten_thousand_contexts_come_and_go(void)
{
    size_t before = 0, after = 0, total = 0;
    OK(cuMemGetInfo(&before, &total));
    for (int i = 0; i < 10000; i++) {
        CUcontext made = NULL;
        OK(cuCtxCreate(&made, 0, 0));
        OK(cuCtxDestroy(made));
    }
    OK(cuMemGetInfo(&after, &total));
    CHECK(before == after);
}

int main(void)
{
    setenv("SIMGPU_CLOCK", "fast", 1);
    context = start();
    function = kernel("spin_us_50");
    launch(function, NULL);
    HOLDS(threads_share_a_context_and_leave_nothing_behind);
    HOLDS(ten_thousand_contexts_come_and_go);
    return 0;
}
