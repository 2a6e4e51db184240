/* forks: forks while another thread looks functions of the driver up, or walks over all libraries; each child looks one up.
 *
 *     forks dlsym | phdr       prints "0", or "1" where a child did not come back
 *     forks first              the same while the other thread looks the first function up; prints "forked" before it waits for them
 *     forks calls              the same while other threads make streams and end them, and where a child calls what takes a lock
 *                              of the shim's, as destructors of what it has from its parent do; then it ends as programs do
 *     forks cancelled          cancels the other thread while it looks the first function up, and prints "cancelled"; then
 *                              looks one up itself: prints "0", or is ended
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN 100
#define LONGEST_SECONDS 30 /* a child that hangs is ended by then */

static void *library;
static bool walks;
static int stop; /* atomic */

static int pass(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)object;
    (void)size;
    (void)argument;
    return 0;
}

static void *busy(void *unused)
{
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
        if (walks)
            dl_iterate_phdr(pass, NULL);
        else
            dlsym(library, "cuMemAlloc_v2");
    return unused;
}

static bool comes_back(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(LONGEST_SECONDS);
        _exit(dlsym(library, "cuMemAlloc_v2") == NULL);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void *looks_one_up(void *unused)
{
    dlsym(library, "cuInit");
    return unused;
}

#define CALLERS 4

#define CU(name) ((__typeof__(name) *)dlsym(library, #name))

static CUcontext context;

static void *makes_streams(void *unused)
{
    CUstream stream;
    CU(cuCtxPushCurrent_v2)(context);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
        CU(cuStreamDestroy_v2)(stream);
    }
    return unused;
}

/* The driver refuses a child of a process that had it initialized. */
static void child_ends(CUstream stream)
{
    alarm(LONGEST_SECONDS);
    CU(cuStreamDestroy_v2)(stream);
    CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CU(cuCtxDestroy_v2)(context);
    exit(0);
}

static int calls(void)
{
    pthread_t threads[CALLERS];
    CUstream stream;
    int status = 0, children = 0;
    if (CU(cuInit)(0) != CUDA_SUCCESS || CU(cuCtxCreate_v2)(&context, 0, 0) != CUDA_SUCCESS)
        return 3;
    CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < CALLERS; i++)
        pthread_create(&threads[i], NULL, makes_streams, NULL);
    for (; children < CHILDREN && status == 0; children++) {
        pid_t child = fork();
        if (child == 0)
            child_ends(stream);
        waitpid(child, &status, 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    printf("%d\n", status != 0);
    return 0;
}

static int first(void)
{
    pid_t children[CHILDREN];
    pthread_t thread;
    int failed = 0;
    pthread_create(&thread, NULL, looks_one_up, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        children[i] = fork();
        if (children[i] == 0) {
            alarm(LONGEST_SECONDS);
            _exit(dlsym(library, "cuMemAlloc_v2") == NULL);
        }
    }
    puts("forked");
    fflush(stdout);
    for (int i = 0; i < CHILDREN; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        failed |= status;
    }
    pthread_join(thread, NULL);
    printf("%d\n", failed != 0);
    return 0;
}

static int cancelled(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, looks_one_up, NULL);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    pthread_cancel(thread);
    puts("cancelled");
    fflush(stdout);
    alarm(LONGEST_SECONDS);
    pthread_join(thread, NULL);
    printf("%d\n", dlsym(library, "cuMemAlloc_v2") == NULL);
    return 0;
}

int main(int count, char **arguments)
{
    pthread_t thread;
    int children = 0;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (count == 2 && library != NULL && strcmp(arguments[1], "first") == 0)
        return first();
    if (count == 2 && library != NULL && strcmp(arguments[1], "calls") == 0)
        return calls();
    if (count == 2 && library != NULL && strcmp(arguments[1], "cancelled") == 0)
        return cancelled();
    if (count != 2 || library == NULL || dlsym(library, "cuMemAlloc_v2") == NULL)
        return 2;
    walks = strcmp(arguments[1], "phdr") == 0;
    pthread_create(&thread, NULL, busy, NULL);
    while (children < CHILDREN && comes_back())
        children++;
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    printf("%d\n", children != CHILDREN);
    return 0;
}
