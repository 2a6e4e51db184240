/* A library whose constructor looks up a driver function, late: the loader's lock is held meanwhile. */
#include <dlfcn.h>
#include <time.h>

void *found;

__attribute__((constructor)) static void looks_up(void)
{
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    found = dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2");
}
