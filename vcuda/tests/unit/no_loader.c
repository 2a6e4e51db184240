/* no_loader.c: stands in for loader.c and real_dlsym.c where the shim is linked into a program; for one that looks for no driver, unless it
 * brings a function of its own. */
#include <stddef.h>

#include "loading/real_dlsym.h"

__attribute__((weak)) void *real_dlsym(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}
