/* Memory pools: they grow in large steps, keep what is freed, and give it back when the stream or context is waited for. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "sim_driver.h"

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    CUcontext context; /* what its memory is charged to */
    uint64_t life;     /* of that context when it was */
    uint32_t device;
    uint64_t threshold;
    uint64_t reserved;
    uint64_t used;
    uint64_t reserved_high;
    uint64_t used_high;
    uint64_t split; /* of what is reserved, what others can refer to: no longer the context's */
    int on_host;  /* the host's memory: it takes none of a device */
    int imported; /* another process's: nothing is allocated from it, what was imported shows in its figures */
    int destroyed; /* the program has it no longer; it goes with the last of its allocations */
};

/* The pool that a device's streams allocate from, NULL for its default; under sim_process_lock, as the next two. */
CUmemoryPool *sim_pool_current(uint32_t device);
CUmemoryPool sim_pool_default(uint32_t device);
/* Whether the context that its memory was charged to still lives; otherwise the pool has none. */
int sim_pool_backed(CUmemoryPool pool);
/* Gives back all that is neither used nor to be kept. */
void sim_pool_shrink(CUmemoryPool pool, uint64_t keep);

/* The driver's own pool of the host's memory. */
CUmemoryPool sim_pool_of_host(void);
CUresult sim_pool_make(CUmemoryPool *pool, uint32_t device, int on_host);
/* What is allocated from it keeps its memory, and the pool with it, until it is freed. */
CUresult sim_pool_end(CUmemoryPool pool);
/* Gives back what no pool must keep; done at every synchronisation, as a driver does. */
void sim_pools_release(void);

#endif
