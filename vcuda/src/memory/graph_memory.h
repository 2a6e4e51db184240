/* graph_memory.h: memory that graphs allocate for themselves, charged before the driver maps it.
 *
 * The driver maps it when an executable graph is uploaded or first launched, keeps it when that is destroyed, and gives
 * it back to the device when it is asked to trim. What counts is what it has reserved, as with pools.
 */
#ifndef VCUDA_GRAPH_MEMORY_H
#define VCUDA_GRAPH_MEMORY_H

#include "loading/driver.h"

#include <pthread.h>
#include <stdint.h>

#include "config.h"
#include "memory/allocations.h"

struct graph_memory {
    pthread_mutex_t lock; /* guards the rows; the driver is not called under it */
    uint32_t executables; /* how many that allocate were ever made; atomic */
    struct graph_device {
        CUcontext context; /* that allocated first: it takes the memory along when it ends */
        CUdevice ordinal;
        uint64_t charged;
        uint64_t aside;    /* charged, too, for calls under way */
        uint64_t promised; /* of what is reserved and in no use, to calls under way */
        uint64_t ending;   /* charged, too, and loose: the context is about to end */
        uint64_t changes;  /* of these figures: what the driver said before one is out of date */
        uint64_t trims;    /* an executable brought before the last of them is charged again; atomic */
    } devices[VCUDA_MAX_DEVICES];
};

/* Something that makes the driver map memory, and its argument. */
typedef CUresult graph_action(void *call);

/* Instantiates `graph` by `action`, which leaves the executable in `*made`; with `uploads` its memory is mapped, too. */
CUresult graph_memory_instantiate(CUgraph graph, CUgraphExec *made, bool uploads, graph_action *action, void *call);
/* Uploads or launches an executable by `action`; out of memory when what it allocates does not fit. */
CUresult graph_memory_bring(CUgraphExec executable, graph_action *action, void *call);
/* Before the driver destroys an executable: whether it is one that allocates, and what is known of it. Then it was destroyed, or
 * not. */
bool graph_memory_destroying(CUgraphExec executable, struct allocation *row);
void graph_memory_destroyed(CUresult result, const struct allocation *row);
CUresult graph_memory_trim(CUdevice ordinal);
/* A context is about to end, and did (`gone`), or did not: with it goes what is charged for graphs on its device, unless
 * another context holds that. */
void graph_memory_context_ends(CUcontext context);
void graph_memory_context_ended(CUcontext context, bool gone);

#endif
