/* object_at.h: the loaded library that an address lies in, of whatever namespace (dlmopen).
 *
 * Found by glibc's own table where it has one (_dl_find_object, 2.35): that takes no lock, so that it answers also in a child
 * of a fork that came while another thread held one, and no program stands before it. dladdr, the way before it, goes through all
 * symbols of the library for a name that is not needed here; dl_iterate_phdr has neither property.
 */
#ifndef VCUDA_OBJECT_AT_H
#define VCUDA_OBJECT_AT_H

#include <stdbool.h>

/* Whether the address lies in a library whose file is called `stem`.so... */
bool object_at_is_called(const void *address, const char *stem);

/* The dynamic section of the library at the address, by which a library is known; NULL: none has the address. */
const void *object_at(const void *address);

#endif
