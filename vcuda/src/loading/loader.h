/* loader.h: the dynamic loader's own dlsym and dlvsym, which the shim hides from everybody else. */
#ifndef VCUDA_LOADER_H
#define VCUDA_LOADER_H

/* As dlsym(handle, name) of the C library, for explicit handles only. */
void *loader_symbol(void *handle, const char *name);

#endif
