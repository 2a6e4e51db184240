/* A program's first steps on the simulated GPU. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static void memory_is_taken_in_granules_and_given_back(void)
{
    size_t before = 0, after = 0, total = 0;
    CUdeviceptr small = 0, large = 0;
    OK(cuMemGetInfo(&before, &total));
    CHECK(total == 81920UL << 20 && before == total - (256UL << 20));
    OK(cuMemAlloc(&small, 1));
    OK(cuMemAlloc(&large, (2 << 20) + 1));
    OK(cuMemGetInfo(&after, &total));
    CHECK(before - after == 6UL << 20);
    OK(cuMemFree(small));
    OK(cuMemFree(large));
    OK(cuMemGetInfo(&after, &total));
    CHECK(before == after);
    CHECK(cuMemFree(large) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemAlloc(&large, 90000UL << 20) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void events_measure_what_a_kernel_takes(void)
{
    CUfunction function = kernel("spin_us_2000");
    CUevent begin = NULL, end = NULL;
    CUstream stream = NULL;
    float ms = 0;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    double before = seconds();
    OK(cuEventRecord(begin, stream));
    launch(function, stream);
    launch(function, stream);
    OK(cuEventRecord(end, stream));
    CHECK(cuEventQuery(end) == CUDA_ERROR_NOT_READY || seconds() - before >= 0.004);
    OK(cuStreamSynchronize(stream));
    OK(cuEventQuery(end));
    OK(cuEventElapsedTime(&ms, begin, end));
    CHECK(ms > 3.99f && (double)ms / 1000 <= seconds() - before);
}

static void the_legacy_stream_waits_for_blocking_streams(void)
{
    CUfunction function = kernel("spin_us_3000");
    CUstream blocking = NULL;
    OK(cuStreamCreate(&blocking, 0));
    launch(function, blocking);
    launch(function, NULL);
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamQuery(blocking));
    OK(cuStreamDestroy(blocking));
}

static void both_resolvers_give_the_form_of_the_version_asked_for(void)
{
    void *address = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    OK(cuGetProcAddress("cuMemAlloc", &address, 12000, 0, &status));
    CHECK(address == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    OK(cuGetProcAddress("cuMemAlloc", &address, 2000, 0, &status));
    CHECK(address == dlsym(RTLD_DEFAULT, "cuMemAlloc"));
    OK(cuGetProcAddress("cuLaunchKernel", &address, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    CHECK(address == dlsym(RTLD_DEFAULT, "cuLaunchKernel_ptsz"));
    CHECK(cuGetProcAddress("cuNoSuchCall", &address, 12000, 0, &status) == CUDA_ERROR_NOT_FOUND);
    CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && address == NULL);
    CHECK(cuGetProcAddress("cuStreamGetId", &address, 11080, 0, &status) == CUDA_ERROR_NOT_FOUND);
    CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void a_destroyed_context_says_so(void)
{
    CUcontext context = NULL;
    CUdeviceptr address = 0;
    OK(cuCtxCreate(&context, 0, 0));
    OK(cuMemAlloc(&address, 1 << 20));
    OK(cuCtxDestroy(context));
    OK(cuCtxPushCurrent(context));
    CHECK(cuMemAlloc(&address, 1) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxPopCurrent(NULL));
}

enum { DEPTH = 1024, MORE = 20 };

static CUcontext shared;
static CUfunction short_one;
static CUstream full;
static int launched; /* into it; atomic */

static void *fill(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(shared));
    for (int i = 0; i < DEPTH + MORE; i++) {
        launch(short_one, full);
        __atomic_add_fetch(&launched, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void a_queue_takes_1024_launches_and_blocks_the_next(void)
{
    pthread_t thread;
    void *word = NULL;
    short_one = kernel("spin_us_1");
    OK(cuCtxGetCurrent(&shared));
    OK(cuStreamCreate(&full, CU_STREAM_NON_BLOCKING));
    launch(short_one, full); /* its module is loaded now: later that would wait for the GPU */
    OK(cuMemHostAlloc(&word, 4096, 0));
    void *parameters[] = {&word};
    OK(cuLaunchKernel(kernel("flag"), 1, 1, 1, 1, 1, 1, 0, full, parameters, NULL)); /* nothing gets past it */
    CHECK(pthread_create(&thread, NULL, fill, NULL) == 0);
    for (double limit = seconds() + LIMIT_S; __atomic_load_n(&launched, __ATOMIC_ACQUIRE) < DEPTH - 1; usleep(1000)) {
        CHECK(seconds() < limit);
    }
    usleep(20000);
    CHECK(__atomic_load_n(&launched, __ATOMIC_ACQUIRE) == DEPTH - 1);
    __atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(cuStreamSynchronize(full));
    CHECK(launched == DEPTH + MORE);
    OK(cuStreamDestroy(full));
    OK(cuMemFreeHost(word));
}

int main(void)
{
    size_t left = 0, total = 0;
    CHECK(cuMemGetInfo(&left, &total) == CUDA_ERROR_NOT_INITIALIZED);
    start();
    HOLDS(memory_is_taken_in_granules_and_given_back);
    HOLDS(events_measure_what_a_kernel_takes);
    HOLDS(the_legacy_stream_waits_for_blocking_streams);
    HOLDS(both_resolvers_give_the_form_of_the_version_asked_for);
    HOLDS(a_queue_takes_1024_launches_and_blocks_the_next);
    HOLDS(a_destroyed_context_says_so);
    return 0;
}
