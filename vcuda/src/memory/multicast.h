/* multicast.h: memory that is bound to multicast objects, which keep it as long as they last. */
#ifndef VCUDA_MULTICAST_H
#define VCUDA_MULTICAST_H

#include "loading/driver.h"

#include <pthread.h>
#include <stdint.h>

struct multicast {
    pthread_mutex_t lock; /* guards the rows */
    struct binding {
        CUmemGenericAllocationHandle object, physical;
        CUdevice ordinal;
        uint64_t offset, size; /* in the object */
    } *rows;
    size_t count, room;
};

/* The driver bound memory to an object: one reference more to it. */
void multicast_bound(const struct binding *binding);
/* Unbinds what lies whole in the range, one by one. What the range covers besides is left in `offset` and `size`. */
CUresult multicast_unbind(CUmemGenericAllocationHandle object, CUdevice ordinal, uint64_t *offset, uint64_t *size);
/* The last reference to an object is about to go, and its bindings with it. With `elsewhere` another process may have it:
 * then the shim cannot know when the driver frees the memory. */
void multicast_ends(CUmemGenericAllocationHandle object, bool elsewhere);

#endif
