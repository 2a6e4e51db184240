/* finds_itself.c: a library that looks for its own function in its own scope, as plug-ins do whose names are hidden from others. */
#include <dlfcn.h>
#include <stddef.h>

int finds_itself(void)
{
    return dlsym(RTLD_DEFAULT, "finds_itself") != NULL;
}
