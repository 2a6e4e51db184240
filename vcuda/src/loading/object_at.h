/* object_at.h: the loaded library that an address lies in, found by its segments. dladdr finds it too, but goes through all
 * symbols of the library for a name that is not needed here: that takes longer than dlsym itself, and programs look up
 * functions of the driver in many threads at once.
 */
#ifndef VCUDA_OBJECT_AT_H
#define VCUDA_OBJECT_AT_H

#include <stdbool.h>

/* Whether the address lies in a library whose file is called `stem`.so... */
bool object_at_is_called(const void *address, const char *stem);

/* The dynamic section of the library at the address, by which a library is known; NULL: none has the address. */
const void *object_at(const void *address);

#endif
