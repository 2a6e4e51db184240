/* object_at.h: the loaded library that an address lies in, of whatever namespace (dlmopen).
 *
 * From glibc 2.35 on _dl_find_object says it. It takes no lock, so that a child of a fork gets an answer although another thread
 * held one at the fork. On an older glibc dladdr1 says it, and goes through all symbols of the library, which takes longer than
 * dlsym. dl_iterate_phdr takes a lock that a fork does not free, sees the libraries of one namespace, and programs replace it.
 */
#ifndef VCUDA_OBJECT_AT_H
#define VCUDA_OBJECT_AT_H

#include <stdbool.h>

/* Whether the address lies in a library whose file is called `stem`.so... */
bool object_at_is_called(const void *address, const char *stem);

/* The dynamic section of the library at the address, by which a library is known; NULL: none has the address. */
const void *object_at(const void *address);

#endif
