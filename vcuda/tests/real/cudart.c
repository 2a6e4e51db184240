/* cudart.c: asks NVIDIA's CUDA runtime how many GPUs there are; prints "ERROR COUNT".
 *
 *     cudart LIBRARY     the runtime of that path
 *     cudart-RELEASE     built with STATIC_RUNTIME: the one that it was linked with
 */
#include <dlfcn.h>
#include <stdio.h>

#ifdef STATIC_RUNTIME
int cudaGetDeviceCount(int *count);
#else
static int (*cudaGetDeviceCount)(int *count);
#endif

int main(int count, char **arguments)
{
    int devices = -1;
    (void)count;
    (void)arguments;
#ifndef STATIC_RUNTIME
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (library == NULL || (*(void **)&cudaGetDeviceCount = dlsym(library, "cudaGetDeviceCount")) == NULL)
        return 3;
#endif
    int error = cudaGetDeviceCount(&devices);
    printf("%d %d\n", error, devices);
    return 0;
}
