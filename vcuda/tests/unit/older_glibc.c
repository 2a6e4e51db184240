/* older_glibc.c: prints what dlerror has to say after the first look-up of a name that begins as the driver's do; "nothing" where
 * it has nothing to say.
 *
 * The C library is one without _dl_find_object, as before glibc 2.35.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "loading/real_dlsym.h"

void *vcuda_dlsym(void *handle, const char *name);
void *__real_real_dlsym(void *handle, const char *name);
void *__wrap_real_dlsym(void *handle, const char *name);

void *__wrap_real_dlsym(void *handle, const char *name)
{
    return __real_real_dlsym(handle, strcmp(name, "_dl_find_object") == 0 ? "no_such_function" : name);
}

int main(void)
{
    vcuda_loader_find();
    void *found = vcuda_dlsym(dlopen("libc.so.6", RTLD_LAZY), "cuserid");
    const char *error = dlerror();
    puts(found == NULL ? "not found" : error == NULL ? "nothing" : error);
    return 0;
}
