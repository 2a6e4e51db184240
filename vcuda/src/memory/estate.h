/* estate.h: all that goes with a context, and what is charged for it. */
#ifndef VCUDA_ESTATE_H
#define VCUDA_ESTATE_H

#include "allocations.h"
#include "driver.h"

struct estate {
    CUcontext context;
    int index;         /* of its device */
    uint64_t bytes;    /* charged for the rows */
    uint64_t exported; /* of these, what others may hold */
    struct allocation *rows;
    size_t count, room;
};

/* Before the driver ends the context: what it frees, another thread may be given at once. `index` counts where the context
 * has no row of its own. */
void estate_take(struct estate *estate, CUcontext context, int index);
/* After it did (`gone`), or refused: then everything is as it was. */
void estate_settle(struct estate *estate, bool gone);

/* A context that was made past us may be about to end: nothing of it is touched any more. */
void estate_unknown_ends(CUcontext context);

#endif
