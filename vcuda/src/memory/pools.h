/* pools.h: memory pools, charged by what they have reserved from the device. */
#ifndef VCUDA_POOLS_H
#define VCUDA_POOLS_H

#include "config.h"
#include "loading/driver.h"

#include <pthread.h>
#include <stdint.h>

/* One pool. Rows are never freed, so that they can be read without the lock; a free one is used again. */
struct pool {
    struct pool *next;
    CUmemoryPool pool; /* NULL: free. Atomic */
    CUcontext context; /* that allocated from it first, and may take its memory along; NULL: none yet. Atomic */
    int index;         /* of its device; POOL_UNCHARGED: of the host, or imported: nothing is allocated from it here */
    bool exported;     /* what it gives back, others may hold */
    bool over;         /* it grew past the limit, and is to shrink to `keep` as soon as the driver can */
    uint64_t keep;
    uint64_t charged; /* written under the lock. Atomic */
    uint64_t aside;   /* charged, too, for calls under way that may make it grow */
    uint64_t ending;  /* charged, too, and loose: the context is about to end */
    uint64_t
        taken; /* at most so much of it is in use: what was when it was last settled, and what was asked for since. Atomic */
    uint64_t pending; /* of calls that are under way. Atomic */
    uint64_t changes; /* of what is written under the lock: what the driver said before one is out of date */
    uint32_t askers;  /* threads that ask the driver about the pool, which may not end meanwhile */
    uint32_t growers; /* calls under way in which it may grow, besides those in `pending`: each decides if that stays */
};

/* Pools that this process has made, imported or allocated from. */
struct pools {
    pthread_mutex_t lock;  /* guards the rows but their atomics; the driver is not called under it */
    uint64_t shrinking_ns; /* CLOCK_MONOTONIC when something last happened after which pools give memory back; atomic */
    struct pool *rows;     /* atomic; rows are added at the front */
    CUmemoryPool current[VCUDA_MAX_DEVICES]; /* by index, which pool the device allocates from; NULL: to be asked. Atomic */
};

#define POOL_UNCHARGED (-1)

/* A pool was made or imported; `index` is of its device. Without memory to note it, it is not charged. */
void pools_add(CUmemoryPool pool, int index);
void pools_export(CUmemoryPool pool);

/* The pool that a device allocates from, as it was last seen; NULL: the driver is to be asked. */
CUmemoryPool pools_current(int index);
void pools_set_current(int index, CUmemoryPool pool);
/* Some device may allocate from another pool from now on. */
void pools_forget_current(void);

/* An allocation that the pool should have room for in what is charged. NULL: it may have to grow, and pools_allocate is for
 * that. Otherwise pools_taken follows the driver's call: false where the pool has grown all the same, and past the limit; then
 * pools_over follows. */
struct pool *pools_take(CUmemoryPool pool, uint64_t bytes);
bool pools_taken(struct pool *pool, uint64_t bytes);

/* An allocation that may make the pool grow: charge the growth, let `allocate` do it, settle by what the pool then has. Where
 * that is past the limit, `release` frees what was allocated, and the answer is that there is no memory. */
CUresult pools_allocate(CUmemoryPool pool, uint64_t bytes, CUstream stream, CUresult (*allocate)(void *),
                        void (*release)(void *), void *call);
/* Frees an allocation by `release`, unless it failed by `result`, since the pool grew past the limit. What the driver has yet to
 * release stays charged. Returns the answer to the program. */
CUresult pools_over(struct pool *pool, CUresult result, void (*release)(void *), void *call);

/* Settles a pool that may have shrunk; NULL: all of the process. */
void pools_settle(CUmemoryPool pool);
/* For the shim's own ends, while streams may capture: the pool gives back what is not in use, down to `keep` bytes. */
void pools_trim(CUmemoryPool pool, uint64_t keep);
/* Something was freed or is to be kept no longer: pools shrink when next waited for, and are looked at soon. */
void pools_will_shrink(void);
bool pools_shrinking(uint64_t now_ns);

/* Forgets a pool that is about to be destroyed, and hands over what is charged for it, once no other thread asks the driver about
 * it. */
struct pool pools_forget(CUmemoryPool pool);
/* It was not. */
void pools_put_back(const struct pool *pool);

/* The context in which pools were first used is about to end, and did (`gone`), or did not. What it takes of their memory
 * along, the pools show afterwards. */
void pools_context_ends(CUcontext context);
void pools_context_ended(CUcontext context, bool gone);

#endif
