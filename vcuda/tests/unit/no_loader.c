/* no_loader.c: stands in for loader.c where the shim is linked into a program that never looks for a driver. */
#include <stddef.h>

#include "loader.h"

void *loader_symbol(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}
