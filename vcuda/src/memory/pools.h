/* pools.h: memory pools, charged by what they have reserved from the device. */
#ifndef VCUDA_POOLS_H
#define VCUDA_POOLS_H

#include "driver.h"

#include <pthread.h>
#include <stdint.h>

#define POOLS 256

/* Pools that this process has made, imported or allocated from. */
struct pools {
    pthread_mutex_t lock; /* guards the rows, and the growing of pools: who grows one knows by how much */
    uint64_t shrinking_ns; /* CLOCK_MONOTONIC when something last happened after which pools give memory back; atomic */
    struct pool {
        CUmemoryPool pool; /* NULL: free */
        CUcontext context; /* that allocated from it first, and may take its memory along; NULL: none yet */
        int index;         /* of its device; POOL_UNCHARGED: of the host, or imported: nothing is allocated from it here */
        bool exported;     /* what it gives back, others may hold */
        uint64_t charged;
        uint64_t ending;   /* charged, too, and loose: the context is about to end */
    } rows[POOLS];
};

#define POOL_UNCHARGED (-1)

/* A pool was made or imported; `index` is of its device. False when there is no room to note it. */
bool pools_add(CUmemoryPool pool, int index);
void pools_export(CUmemoryPool pool);

/* An allocation from a pool: reserve the growth, let `allocate` do it, settle by what the pool then has. */
CUresult pools_allocate(CUmemoryPool pool, uint64_t bytes, CUresult (*allocate)(void *), void (*undo)(void *), void *call);

/* Settles a pool (NULL: all of the process) that may have shrunk. */
void pools_settle(CUmemoryPool pool);
/* Something was freed or is to be kept no longer: pools shrink when next waited for, and are looked at soon. */
void pools_will_shrink(void);
bool pools_shrinking(uint64_t now_ns);

/* Forgets a pool that is about to be destroyed, and hands over what is charged for it. */
struct pool pools_forget(CUmemoryPool pool);
/* It was not. */
void pools_put_back(const struct pool *pool);

/* The context in which pools were first used is about to end, and did (`gone`), or did not. What it takes of their memory
 * along, the pools tell afterwards. */
void pools_context_ends(CUcontext context);
void pools_context_ended(CUcontext context, bool gone);

#endif
