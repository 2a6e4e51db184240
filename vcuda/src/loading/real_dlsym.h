/* real_dlsym.h: the dynamic loader's own dlsym and dlvsym, which the shim hides from all other code. */
#ifndef VCUDA_REAL_DLSYM_H
#define VCUDA_REAL_DLSYM_H

#include <stdbool.h>

typedef void *dlsym_function(void *, const char *);
typedef void *dlvsym_function(void *, const char *, const char *);

/* vcuda_loader_find sets it, each thread to the same value; loader_entry.S reads it. */
extern __attribute__((visibility("hidden"))) dlsym_function *vcuda_real_dlsym;
extern __attribute__((visibility("hidden"))) dlvsym_function *vcuda_real_dlvsym;
__attribute__((visibility("hidden"))) void vcuda_loader_find(void);

/* As dlsym(handle, name) of the C library; RTLD_DEFAULT is the scope of the shim, and RTLD_NEXT means nothing here. */
void *real_dlsym(void *handle, const char *name);

/* The first caller may be a sanitizer's runtime that is only half there and has hooks of its own on the string
 * functions: what runs then uses none. */
static inline bool begins(const char *text, const char *with)
{
    while (*with != '\0')
        if (*text++ != *with++)
            return false;
    return true;
}

/* The name of a file without its folders. */
static inline const char *file_of(const char *path)
{
    const char *file = path;
    for (; *path != '\0'; path++)
        if (*path == '/')
            file = path + 1;
    return file;
}

#endif
