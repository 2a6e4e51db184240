#include "pools.h"

#include "charge.h"
#include "clock.h"
#include "device.h"
#include "granule.h"
#include "helper.h"
#include "orphans.h"
#include "process.h"

#define STEP (32ull << 20)        /* pools grow by multiples of this */
#define SHRINKS_WITHIN_NS 100000000u /* after a free: most programs wait for their stream so soon */

/* What the pool has reserved from the device; `fallback` when the driver does not say. */
static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which, uint64_t fallback)
{
    cuuint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(pool, which, &value) == CUDA_SUCCESS ? value : fallback;
}

/* Under the lock: the pool's row, or a free one (of pool NULL). NULL when there is neither. */
static struct pool *row_of(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    struct pool *free = NULL;
    for (int i = 0; i < POOLS; i++) {
        if (all->rows[i].pool == pool)
            return &all->rows[i];
        if (free == NULL && all->rows[i].pool == NULL)
            free = &all->rows[i];
    }
    return free;
}

bool pools_add(CUmemoryPool pool, int index)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = row_of(pool);
    if (row != NULL)
        *row = (struct pool){.pool = pool, .index = index};
    pthread_mutex_unlock(&all->lock);
    return row != NULL;
}

void pools_export(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = row_of(pool);
    if (row != NULL && row->pool != NULL && row->index != POOL_UNCHARGED && !row->exported) {
        row->exported = true;
        others_may_hold(row->index, row->charged);
    }
    pthread_mutex_unlock(&all->lock);
}

/* The device of a pool that the driver made: that whose default pool it is, or else the current one. */
static int device_of(CUmemoryPool pool, int current)
{
    CUmemoryPool one = NULL;
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    for (CUdevice ordinal = 0; ordinal < count; ordinal++)
        if (REAL(cuDeviceGetDefaultMemPool)(&one, ordinal) == CUDA_SUCCESS && one == pool)
            return device_index(ordinal);
    return current;
}

/* Under the lock: the row to allocate by. */
static struct pool *row_to_use(CUmemoryPool pool)
{
    struct pool *row = row_of(pool);
    CUcontext context;
    int index;
    if (row == NULL || (row->context == NULL && !current_device(&context, &index)))
        return NULL;
    if (row->pool == NULL)
        index = device_of(pool, index);
    if (row->pool == NULL && index < 0)
        return NULL;
    if (row->pool == NULL)
        *row = (struct pool){.pool = pool, .index = index};
    if (row->context == NULL)
        row->context = context;
    return row;
}

/* Under the lock: the driver let go of so much, loosened before. */
static void given_back(const struct pool *row, uint64_t bytes)
{
    if (row->exported)
        orphan(row->index, bytes);
    else
        discharge(row->index, bytes);
}

/* Under the lock: makes the charge what the pool has reserved, of which `set_aside` is charged already and not
 * confirmed. False when that would pass the limit; then nothing has changed but `set_aside`, which is given back. */
static bool settle(struct pool *row, uint64_t set_aside)
{
    if (row->index == POOL_UNCHARGED)
        return true;
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
        given_back(row, row->charged - reserved);
    }
    if (row->exported && reserved > row->charged)
        others_may_hold(row->index, reserved - row->charged);
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
    struct pool *row = row_to_use(pool);
    if (row == NULL || row->index == POOL_UNCHARGED) {
        pthread_mutex_unlock(&all->lock);
        return row == NULL ? CUDA_ERROR_OUT_OF_MEMORY : allocate(call);
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

void pools_put_back(const struct pool *pool)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = pool->pool != NULL ? row_of(pool->pool) : NULL;
    if (row != NULL)
        *row = *pool;
    pthread_mutex_unlock(&all->lock);
}

void pools_context_ends(CUcontext context)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < POOLS; i++) {
        struct pool *row = &all->rows[i];
        if (row->pool == NULL || row->context != context)
            continue;
        loosen(row->index, row->charged);
        row->ending += row->charged;
        row->charged = 0;
    }
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock: what the pool still has stays charged. */
static void settle_ended(struct pool *row)
{
    uint64_t reserved = attribute(row->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0);
    uint64_t left = reserved > row->charged ? reserved - row->charged : 0;
    uint64_t kept = left < row->ending ? left : row->ending;
    confirm(row->index, kept);
    given_back(row, row->ending - kept);
    row->charged += kept;
    row->ending = 0;
}

void pools_context_ended(CUcontext context, bool gone)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    for (int i = 0; i < POOLS; i++) {
        struct pool *row = &all->rows[i];
        if (row->pool == NULL || row->context != context)
            continue;
        settle_ended(row);
        if (gone)
            row->context = NULL;
    }
    pthread_mutex_unlock(&all->lock);
}

void pools_will_shrink(void)
{
    __atomic_store_n(&process()->pools.shrinking_ns, clock_ns(), __ATOMIC_RELAXED);
    helper_wake();
}

bool pools_shrinking(uint64_t now_ns)
{
    uint64_t since = __atomic_load_n(&process()->pools.shrinking_ns, __ATOMIC_RELAXED);
    return since != 0 && now_ns < since + SHRINKS_WITHIN_NS;
}
