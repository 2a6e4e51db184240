/* deferred_frees.h: plain memory that was freed in a stream's order (cuMemFreeAsync). It stays charged until the stream has
 * come to the free, which an event right behind it shows. */
#ifndef VCUDA_DEFERRED_FREES_H
#define VCUDA_DEFERRED_FREES_H

#include "loading/driver.h"
#include "memory/allocations.h"

struct deferred_free;

struct deferred_frees {
    pthread_mutex_t lock;        /* guards all of it and what the lists have; no driver call is made under it */
    struct deferred_free *list;  /* not known to be done. Written under the lock; atomic: it is seen to be empty without it */
    struct deferred_free *taken; /* those that a thread goes through (`asking`), which alone takes any out of this list */
    struct deferred_free *asked; /* of these, the one about which it asks the driver now; NULL: none */
    bool asking;
};

/* The driver has accepted the free of this allocation in the stream, as the calling thread means it. */
void deferred_frees_add(const struct allocation *allocation, CUstream stream);

/* Discharges what streams have come to; true where there was any. Never waits for a stream. */
bool deferred_frees_settle(void);

/* A context is about to end: the driver is asked about its events no more. Then it has ended (`gone`), or not. */
void deferred_frees_context_ends(CUcontext context);
void deferred_frees_context_ended(CUcontext context, bool gone);

#endif
