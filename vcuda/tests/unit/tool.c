/* tool.c: a profiler that uses the primary context itself, from a callback of the driver's.
 *
 * CALLED names the driver's call in which it does so. There it retains the context, and with RELEASES releases it at once. It ends
 * the program where one of its calls fails.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void simgpu_called(const char *name);

void simgpu_called(const char *name)
{
    const char *called = getenv("CALLED");
    void *driver = called != NULL && strcmp(name, called) == 0 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
    int (*retain)(void **context, int device) = NULL, (*release)(int device) = NULL;
    void *context = NULL;
    if (driver == NULL)
        return;
    void *found[] = {dlsym(driver, "cuDevicePrimaryCtxRetain"), dlsym(driver, "cuDevicePrimaryCtxRelease_v2")};
    memcpy(&retain, &found[0], sizeof retain);
    memcpy(&release, &found[1], sizeof release);
    if (retain(&context, 0) != 0 || (getenv("RELEASES") != NULL && release(0) != 0))
        abort();
}
