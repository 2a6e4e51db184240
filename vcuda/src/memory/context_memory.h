/* context_memory.h: all that goes with a context, and what is charged for it. */
#ifndef VCUDA_CONTEXT_MEMORY_H
#define VCUDA_CONTEXT_MEMORY_H

#include "loading/driver.h"
#include "memory/allocations.h"

struct context_memory {
    CUcontext context;
    int index;         /* of its device */
    uint64_t bytes;    /* charged for the rows */
    uint64_t exported; /* of these, what others may hold */
    struct allocation *rows;
    size_t count, room;
};

/* Before the driver ends the context: what it frees, another thread may be given at once. `index` counts where the context
 * has no row of its own. The driver is asked about it only while it `is_alive`. */
void context_memory_take(struct context_memory *memory, CUcontext context, int index, bool is_alive);
/* After it did (`gone`), or refused: then everything is as it was. */
void context_memory_settle(struct context_memory *memory, bool gone);

/* A context that the driver made without the shim may be about to end: the shim no longer touches anything of it. */
void context_memory_unknown_ends(CUcontext context);

#endif
