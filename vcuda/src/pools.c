#include "pools.h"

#include "granule.h"
#include "state.h"

#define STEP (32ull << 20) /* pools grow by multiples of this */

/* What the pool has reserved from the device; `fallback` when the driver does not say. */
static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which, uint64_t fallback)
{
    cuuint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(pool, which, &value) == CUDA_SUCCESS ? value : fallback;
}

/* Under the lock. NULL when there is no room for one more: then its memory goes uncounted until the node sees it. */
static struct pool *row_of(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    CUcontext context;
    int index;
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool == pool)
            return &all->rows[i];
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool == NULL && current_device(&context, &index)) {
            all->rows[i] = (struct pool){pool, context, index, 0};
            return &all->rows[i];
        }
    return NULL;
}

/* Under the lock: makes the charge what the pool has reserved, of which `set_aside` is charged already and not
 * confirmed. False when that would pass the limit; then nothing has changed but `set_aside`, which is given back. */
static bool settle(struct pool *row, uint64_t set_aside)
{
    uint64_t reserved = attribute(row->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, row->charged);
    uint64_t have = row->charged + set_aside;
    if (reserved > have && !charge(row->index, reserved - have)) {
        discharge(row->index, set_aside);
        return false;
    }
    if (reserved >= row->charged) {
        confirm(row->index, reserved - row->charged);
        if (have > reserved)
            discharge(row->index, have - reserved);
    } else {
        discharge(row->index, set_aside);
        loosen(row->index, row->charged - reserved);
        discharge(row->index, row->charged - reserved);
    }
    row->charged = reserved;
    return true;
}

static void settle_all(void)
{
    struct pools *all = &process()->pools;
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool != NULL)
            settle(&all->rows[i], 0);
}

CUresult pools_allocate(CUmemoryPool pool, uint64_t bytes, CUresult (*allocate)(void *), void (*undo)(void *), void *call)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = row_of(pool);
    if (row == NULL) {
        pthread_mutex_unlock(&all->lock);
        return allocate(call);
    }
    uint64_t most = granule_up(bytes, STEP);
    bool reserved = most >= bytes && charge(row->index, most);
    if (!reserved) {
        settle_all(); /* another pool may have shrunk since */
        reserved = most >= bytes && charge(row->index, most);
    }
    uint64_t inside = attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0) -
                      attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (reserved || inside >= bytes) {
        result = allocate(call);
        if (!settle(row, reserved ? most : 0) && result == CUDA_SUCCESS) {
            undo(call);
            settle(row, 0);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&all->lock);
    return result;
}

void pools_settle(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool != NULL && (pool == NULL || all->rows[i].pool == pool))
            settle(&all->rows[i], 0);
    pthread_mutex_unlock(&all->lock);
}

struct pool pools_forget(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    struct pool found = {0};
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool == pool) {
            found = all->rows[i];
            all->rows[i] = (struct pool){0};
        }
    pthread_mutex_unlock(&all->lock);
    return found;
}

uint64_t pools_forget_context(CUcontext context)
{
    struct pools *all = &process()->pools;
    uint64_t sum = 0;
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < POOLS; i++)
        if (all->rows[i].pool != NULL && all->rows[i].context == context) {
            sum += all->rows[i].charged;
            all->rows[i] = (struct pool){0};
        }
    pthread_mutex_unlock(&all->lock);
    return sum;
}
