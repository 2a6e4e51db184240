/* pools.h: memory pools, charged by what they have reserved from the device. */
#ifndef VCUDA_POOLS_H
#define VCUDA_POOLS_H

#include "driver.h"

#include <pthread.h>
#include <stdint.h>

#define POOLS 64

/* Pools that this process has allocated from. */
struct pools {
    pthread_mutex_t lock; /* guards the rows, and the growing of pools: who grows one knows by how much */
    struct pool {
        CUmemoryPool pool; /* NULL: free */
        CUcontext context; /* that allocated from it first: ends with it */
        int index;
        uint64_t charged;
    } rows[POOLS];
};

/* An allocation from a pool: reserve the growth, let `allocate` do it, settle by what the pool then has. */
CUresult pools_allocate(CUmemoryPool pool, uint64_t bytes, CUresult (*allocate)(void *), void (*undo)(void *), void *call);

/* Settles a pool (NULL: all of the process) that may have shrunk. */
void pools_settle(CUmemoryPool pool);

/* Forgets a pool that is about to be destroyed, and hands over what is charged for it. */
struct pool pools_forget(CUmemoryPool pool);

/* The same for all pools that were first used in a context that is about to end: their sum. */
uint64_t pools_forget_context(CUcontext context);

#endif
