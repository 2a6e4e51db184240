/* churn.c: threads that allocate and free at random until the time is up or somebody kills them.
 *
 *     churn SECONDS THREADS MOST_BYTES SEED      prints "ALLOCATIONS REFUSALS"
 *
 * Writes one line "ready" once it has a context, and begins when it gets a line or the end of its input.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define KEPT 16

static void *library;
static CUcontext shared;
static double seconds;
static size_t most;
static unsigned long done, refused;

#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *argument)
{
    unsigned seed = (unsigned)(size_t)argument;
    CUdeviceptr kept[KEPT] = {0};
    double end = now() + seconds;
    __typeof__(cuMemAlloc_v2) *allocate = CU(cuMemAlloc_v2);
    __typeof__(cuMemFree_v2) *release = CU(cuMemFree_v2);
    CU(cuCtxPushCurrent_v2)(shared);
    for (unsigned i = 0; i % 64 != 0 || now() < end; i++) {
        CUdeviceptr *one = &kept[(unsigned)rand_r(&seed) % KEPT];
        if (*one != 0 && release(*one) != CUDA_SUCCESS)
            abort();
        *one = 0;
        size_t bytes = (size_t)rand_r(&seed) % most + 1;
        if (allocate(one, bytes) == CUDA_SUCCESS)
            __atomic_add_fetch(&done, 1, __ATOMIC_RELAXED);
        else
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    }
    for (int i = 0; i < KEPT; i++)
        if (kept[i] != 0)
            release(kept[i]);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 5)
        return 2;
    pthread_t threads[64];
    int number = atoi(arguments[2]);
    seconds = atof(arguments[1]);
    most = strtoull(arguments[3], NULL, 10);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CU(cuInit)(0) != CUDA_SUCCESS)
        return 3;
    if (CU(cuDevicePrimaryCtxRetain)(&shared, 0) != CUDA_SUCCESS)
        return 4;
    puts("ready");
    fflush(stdout);
    getchar();
    for (int i = 0; i < number; i++)
        pthread_create(&threads[i], NULL, work, (void *)(size_t)(atoi(arguments[4]) * 64 + i));
    for (int i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
    printf("%lu %lu\n", done, refused);
    return 0;
}
