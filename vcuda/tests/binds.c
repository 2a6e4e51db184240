/* binds.c: a program linked with the driver, whose first call meets a library that another thread loads.
 *
 *     binds LIBRARY     prints the CUresult of cuInit once both are done
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static void *loads(void *path)
{
    return dlopen(path, RTLD_NOW);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    void *loaded = NULL;
    if (count != 2)
        return 2;
    pthread_create(&thread, NULL, loads, arguments[1]);
    nanosleep(&(struct timespec){0, 100000000}, NULL); /* by now its constructor runs */
    CUresult result = cuInit(0);
    pthread_join(thread, &loaded);
    printf("%d %d\n", (int)result, loaded != NULL);
    return 0;
}
