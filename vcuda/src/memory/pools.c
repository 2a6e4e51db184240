#include "memory/pools.h"

#include <stdlib.h>

#include "capture_mode.h"
#include "clock.h"
#include "device.h"
#include "least.h"
#include "memory/charge.h"
#include "memory/granule.h"
#include "memory/orphans.h"
#include "process.h"
#include "state.h"
#include "wakeup.h"

#define STEP (32ull << 20)           /* pools grow by multiples of this */
#define SHRINKS_WITHIN_NS 100000000u /* after a free: most programs wait for their stream so soon */
#define MOMENT_NS 20000u             /* between looks whether another thread has left the driver */
#define LONGEST_WAIT_NS 1000000000u  /* that the end of a pool waits for one that asks about it */

/* What the pool has reserved from the device; `fallback` when the driver does not say. */
static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which, uint64_t fallback)
{
    cuuint64_t value = 0;
    return REAL(cuMemPoolGetAttribute)(pool, which, &value) == CUDA_SUCCESS ? value : fallback;
}

static struct pool *first_row(void)
{
    return __atomic_load_n(&process()->pools.rows, __ATOMIC_ACQUIRE);
}

/* The pool's row; NULL when there is none. */
static struct pool *row_of(CUmemoryPool pool)
{
    struct pool *row = first_row();
    while (row != NULL && __atomic_load_n(&row->pool, __ATOMIC_ACQUIRE) != pool)
        row = row->next;
    return row;
}

/* Under the lock: a row for a pool that has none. NULL when there is no memory for it. */
static struct pool *new_row(CUmemoryPool pool, int index)
{
    struct pools *all = &process()->pools;
    struct pool *row = first_row();
    while (row != NULL && (row->pool != NULL || row->askers != 0))
        row = row->next;
    if (row == NULL) {
        row = calloc(1, sizeof *row);
        if (row == NULL)
            return NULL;
        row->next = all->rows;
        __atomic_store_n(&all->rows, row, __ATOMIC_RELEASE);
    }
    row->index = index;
    row->exported = row->over = false;
    row->charged = row->aside = row->ending = row->taken = row->pending = 0;
    row->growers = 0;
    row->changes++;
    __atomic_store_n(&row->context, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(&row->pool, pool, __ATOMIC_RELEASE);
    return row;
}

void pools_add(CUmemoryPool pool, int index)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    if (row_of(pool) == NULL)
        new_row(pool, index);
    pthread_mutex_unlock(&all->lock);
}

void pools_export(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = row_of(pool);
    if (row != NULL && row->index != POOL_UNCHARGED && !row->exported) {
        row->exported = true;
        others_may_hold(row->index, row->charged);
    }
    pthread_mutex_unlock(&all->lock);
}

CUmemoryPool pools_current(int index)
{
    return __atomic_load_n(&process()->pools.current[index], __ATOMIC_RELAXED);
}

void pools_set_current(int index, CUmemoryPool pool)
{
    __atomic_store_n(&process()->pools.current[index], pool, __ATOMIC_RELAXED);
}

void pools_forget_current(void)
{
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++)
        pools_set_current(i, NULL);
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

/* The context by which memory is allocated in the order of this stream, and its device: the current one, or the stream's own
 * where none is current (cuda.h, cuMemAllocAsync). False: the call needs a current one, and has none. */
static bool owner_by(CUstream stream, CUcontext *context, int *index)
{
    if (current_owner(context, index))
        return true;
    if (!stream_device(stream, context, index))
        return false;
    *context = device_context_for_all(*context);
    return true;
}

/* The row to allocate by; NULL when it is not known whose memory the pool takes. */
static struct pool *row_to_use(CUmemoryPool pool, CUstream stream)
{
    struct pools *all = &process()->pools;
    struct pool *row = row_of(pool);
    CUcontext context = NULL;
    int index;
    if (row != NULL && __atomic_load_n(&row->context, __ATOMIC_ACQUIRE) != NULL)
        return row;
    if (!owner_by(stream, &context, &index))
        return NULL;
    if (row == NULL)
        index = device_of(pool, index);
    pthread_mutex_lock(&all->lock);
    row = row_of(pool); /* another thread may have made it meanwhile */
    if (row == NULL && index >= 0)
        row = new_row(pool, index);
    if (row != NULL && row->context == NULL)
        __atomic_store_n(&row->context, context, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&all->lock);
    return row;
}

/* Under the lock: the driver released so much, unsettled before. */
static void given_back(const struct pool *row, uint64_t bytes)
{
    if (row->exported)
        orphan(row->index, bytes);
    else
        discharge(row->index, bytes);
}

/* What the driver says of a pool, asked without the lock: it may wait for what another thread does. */
struct look {
    CUmemoryPool pool;
    uint64_t changes;        /* of the row when the driver was about to be asked */
    uint64_t reserved, used; /* `used` is not more than `taken` where the driver does not say */
    uint64_t taken, pending;
};

/* False: the pool has ended. */
static bool ask(struct pool *row, struct look *look)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    look->pool = row->pool;
    look->changes = row->changes;
    row->askers += look->pool != NULL;
    uint64_t charged = row->charged;
    pthread_mutex_unlock(&all->lock);
    if (look->pool == NULL)
        return false;
    look->taken = __atomic_load_n(&row->taken, __ATOMIC_SEQ_CST);
    look->pending = __atomic_load_n(&row->pending, __ATOMIC_SEQ_CST);
    look->reserved = attribute(look->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, charged);
    look->used = attribute(look->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, look->taken);
    return true;
}

/* Locks, for what was seen to be written. False, and not locked: something was written meanwhile, and it is to be asked again. */
static bool is_up_to_date(struct pool *row, const struct look *look)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    row->askers--;
    if (row->changes == look->changes)
        return true;
    pthread_mutex_unlock(&all->lock);
    return false;
}

/* Under the lock: what is in use of the pool now. It counts calls that are under way once or twice, never not at all: a thread
 * that takes something meanwhile keeps the older figure, which is higher. */
static void settle_use(struct pool *row, const struct look *look)
{
    uint64_t taken = look->taken;
    __atomic_compare_exchange_n(&row->taken, &taken, look->used + look->pending, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static void look_at_use(struct pool *row)
{
    struct look look;
    if (!ask(row, &look) || !is_up_to_date(row, &look))
        return; /* another thread has looked meanwhile */
    settle_use(row, &look);
    pthread_mutex_unlock(&process()->pools.lock);
}

/* Under the lock: makes the charge `reserved`, of which `ours` is charged already and not confirmed. */
static void become(struct pool *row, uint64_t reserved, uint64_t ours)
{
    uint64_t grown = reserved > row->charged ? least_of(reserved - row->charged, ours) : 0;
    confirm(row->index, grown);
    discharge(row->index, ours - grown);
    if (reserved < row->charged) {
        unsettle(row->index, row->charged - reserved);
        given_back(row, row->charged - reserved);
    }
    if (row->exported && grown != 0)
        others_may_hold(row->index, grown);
    __atomic_store_n(&row->charged, least_of(row->charged, reserved) + grown, __ATOMIC_SEQ_CST);
    row->changes++;
}

static void growing(struct pool *row)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    row->growers++;
    pthread_mutex_unlock(&all->lock);
}

/* Under the lock: whether a call is under way that may have made it grow, and decides whether that stays. */
static bool undecided(const struct pool *row)
{
    return row->growers != 0 || __atomic_load_n(&row->pending, __ATOMIC_SEQ_CST) != 0;
}

/* Under the lock: a call has decided. The pool may have ended meanwhile, and its row be another's. */
static void decided(struct pool *row)
{
    row->growers -= row->growers != 0;
}

static void set_aside_more(struct pool *row, uint64_t bytes)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    row->aside += bytes;
    pthread_mutex_unlock(&all->lock);
}

static void set_aside_less(struct pool *row, uint64_t bytes)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    row->aside -= least_of(bytes, row->aside);
    pthread_mutex_unlock(&all->lock);
    discharge(row->index, bytes);
}

/* Makes the charge what the pool has reserved, of which the caller's `set_aside` is charged already and not confirmed. Other calls
 * under way have set more aside, and settle their part of the growth themselves. False when it would pass the limit; then nothing
 * has changed but `set_aside`, which is given back. With `anyway` it is charged all the same, but not what a call under way may
 * have made it grow by: that call decides. No lock is held while the driver is asked, nor while memory of the dead is waited for:
 * where another thread settles the pool meanwhile, it is asked again. */
static bool settle(struct pool *row, uint64_t set_aside, bool anyway)
{
    struct pools *all = &process()->pools;
    struct look look;
    if (row->index == POOL_UNCHARGED)
        return true;
    for (;;) {
        if (!ask(row, &look)) {
            discharge(row->index, set_aside);
            return true;
        }
        if (!is_up_to_date(row, &look))
            continue;
        uint64_t have = row->charged + row->aside, more = look.reserved > have ? look.reserved - have : 0;
        if (anyway && undecided(row))
            more = 0;
        if (more == 0 || anyway) {
            row->aside -= least_of(set_aside, row->aside);
            if (more != 0)
                charge_anyway(row->index, more);
            become(row, look.reserved, set_aside + more);
            settle_use(row, &look);
            pthread_mutex_unlock(&all->lock);
            return true;
        }
        pthread_mutex_unlock(&all->lock);
        if (!charge(row->index, more)) {
            set_aside_less(row, set_aside);
            return false;
        }
        set_aside_more(row, more);
        set_aside += more;
    }
}

void pools_trim(CUmemoryPool pool, uint64_t keep)
{
    CUstreamCaptureMode before = capture_mode_relaxed();
    REAL(cuMemPoolTrimTo)(pool, keep);
    capture_mode_exchange(before);
}

/* Settles it; what it has past the limit it gives back as soon as the driver can. */
static void settle_or_shrink(struct pool *row)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    CUmemoryPool pool = row->pool;
    uint64_t keep = row->keep;
    bool over = row->over && pool != NULL;
    row->askers += over;
    pthread_mutex_unlock(&all->lock);
    if (over)
        pools_trim(pool, keep);
    settle(row, 0, true);
    pthread_mutex_lock(&all->lock);
    row->askers -= over;
    if (over && row->pool == pool)
        row->over = undecided(row) || (row->charged > row->keep && ledger_held(ledger, row->index) > memory_limit(row->index));
    pthread_mutex_unlock(&all->lock);
}

static void settle_all(void)
{
    for (struct pool *row = first_row(); row != NULL; row = row->next)
        if (__atomic_load_n(&row->pool, __ATOMIC_ACQUIRE) != NULL)
            settle_or_shrink(row);
}

#define UNIT 512u /* what a pool hands out is a multiple of this */
#define MOST_TAKEN (1ull << 50)

/* Whether what is charged for the pool has room for it. Then it counts as under way until `taken`. */
static bool take(struct pool *row, uint64_t bytes)
{
    uint64_t whole = granule_up(bytes, UNIT);
    if (bytes > MOST_TAKEN)
        return false;
    __atomic_add_fetch(&row->pending, whole, __ATOMIC_SEQ_CST);
    if (__atomic_add_fetch(&row->taken, whole, __ATOMIC_SEQ_CST) <= __atomic_load_n(&row->charged, __ATOMIC_SEQ_CST))
        return true;
    __atomic_sub_fetch(&row->taken, whole, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&row->pending, whole, __ATOMIC_SEQ_CST);
    return false;
}

static void taken(struct pool *row, uint64_t bytes)
{
    __atomic_sub_fetch(&row->pending, granule_up(bytes, UNIT), __ATOMIC_SEQ_CST);
}

struct pool *pools_take(CUmemoryPool pool, uint64_t bytes)
{
    struct pool *row = pool != NULL ? row_of(pool) : NULL;
    if (row == NULL || row->index == POOL_UNCHARGED || __atomic_load_n(&row->context, __ATOMIC_ACQUIRE) == NULL)
        return NULL;
    return take(row, bytes) ? row : NULL;
}

/* Settles a growth; returns whether it stays. If not, pools_over follows. */
static bool stays(struct pool *row, uint64_t set_aside)
{
    struct pools *all = &process()->pools;
    if (!settle(row, set_aside, false))
        return false;
    pthread_mutex_lock(&all->lock);
    decided(row);
    pthread_mutex_unlock(&all->lock);
    return true;
}

bool pools_taken(struct pool *row, uint64_t bytes)
{
    uint64_t charged = __atomic_load_n(&row->charged, __ATOMIC_SEQ_CST);
    if (likely(attribute(row->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, charged) <= charged)) {
        taken(row, bytes);
        return true;
    }
    growing(row); /* its free memory is in pieces, or another stream has yet to release it */
    taken(row, bytes);
    return stays(row, 0);
}

CUresult pools_over(struct pool *row, CUresult result, void (*release)(void *), void *call)
{
    struct pools *all = &process()->pools;
    if (result == CUDA_SUCCESS)
        release(call);
    pthread_mutex_lock(&all->lock);
    row->keep = row->over ? row->keep : row->charged;
    row->over = true;
    decided(row);
    pthread_mutex_unlock(&all->lock);
    settle_or_shrink(row);
    pthread_mutex_lock(&all->lock);
    bool over = row->over;
    pthread_mutex_unlock(&all->lock);
    if (over)
        pools_will_shrink();
    return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* What the pool has free is used though nothing more may be charged. No lock is held while the driver allocates: where the
 * stream's queue is full it waits for room, and that may come with what another thread does after it has allocated. */
static CUresult grow(struct pool *row, uint64_t bytes, CUresult (*allocate)(void *), void (*release)(void *), void *call)
{
    uint64_t most = granule_up(bytes, STEP);
    bool charged = most >= bytes && charge(row->index, most);
    if (!charged) {
        settle_all(); /* another pool may have shrunk since */
        charged = most >= bytes && charge(row->index, most);
    }
    uint64_t inside = attribute(row->pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0) -
                      attribute(row->pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0);
    if (!charged && inside < bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t set_aside = charged ? most : 0;
    set_aside_more(row, set_aside);
    growing(row);
    CUresult result = allocate(call);
    return stays(row, set_aside) ? result : pools_over(row, result, release, call);
}

/* It is not known whose memory it would be: the driver says what is wrong with the call, and nothing of it is kept. */
static CUresult refused(CUresult (*allocate)(void *), void (*release)(void *), void *call)
{
    CUresult result = allocate(call);
    if (result != CUDA_SUCCESS)
        return result;
    release(call);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pools_allocate(CUmemoryPool pool, uint64_t bytes, CUstream stream, CUresult (*allocate)(void *),
                        void (*release)(void *), void *call)
{
    struct pool *row = row_to_use(pool, stream);
    bool charges = row != NULL && row->index != POOL_UNCHARGED, fits = false;
    if (charges) {
        look_at_use(row); /* streams have released some since it was last settled */
        fits = take(row, bytes);
    }
    if (row == NULL)
        return refused(allocate, release, call);
    if (!charges)
        return allocate(call);
    if (!fits)
        return grow(row, bytes, allocate, release, call);
    CUresult result = allocate(call);
    return pools_taken(row, bytes) ? result : pools_over(row, result, release, call);
}

void pools_settle(CUmemoryPool pool)
{
    struct pool *row = pool != NULL ? row_of(pool) : NULL;
    if (pool == NULL)
        settle_all();
    else if (row != NULL)
        settle_or_shrink(row);
}

/* The caller holds the lock, which the function releases while it waits, for a second at most. */
static void wait_for_askers(struct pool *row)
{
    struct pools *all = &process()->pools;
    uint64_t until = clock_ns() + LONGEST_WAIT_NS;
    while (row->askers != 0 && clock_ns() < until) {
        pthread_mutex_unlock(&all->lock);
        clock_sleep(MOMENT_NS);
        pthread_mutex_lock(&all->lock);
    }
}

struct pool pools_forget(CUmemoryPool pool)
{
    struct pools *all = &process()->pools;
    struct pool found = {.index = POOL_UNCHARGED};
    pthread_mutex_lock(&all->lock);
    struct pool *row = row_of(pool);
    if (row != NULL) {
        found = *row;
        __atomic_store_n(&row->pool, NULL, __ATOMIC_RELEASE);
        row->changes++;
        wait_for_askers(row);
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

void pools_put_back(const struct pool *pool)
{
    struct pools *all = &process()->pools;
    pthread_mutex_lock(&all->lock);
    struct pool *row = pool->pool != NULL ? new_row(pool->pool, pool->index) : NULL;
    if (row != NULL) {
        row->exported = pool->exported;
        __atomic_store_n(&row->charged, pool->charged, __ATOMIC_SEQ_CST);
        __atomic_store_n(&row->taken, pool->charged, __ATOMIC_SEQ_CST);
        __atomic_store_n(&row->context, pool->context, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&all->lock);
}

void pools_context_ends(CUcontext context)
{
    struct pools *all = &process()->pools;
    pools_forget_current();
    pthread_mutex_lock(&all->lock);
    for (struct pool *row = first_row(); row != NULL; row = row->next) {
        if (row->pool == NULL || row->context != context)
            continue;
        unsettle(row->index, row->charged);
        row->ending += row->charged;
        __atomic_store_n(&row->charged, 0, __ATOMIC_SEQ_CST);
        row->changes++;
    }
    pthread_mutex_unlock(&all->lock);
}

/* What the pool still has stays charged. */
static void settle_ended(struct pool *row, CUcontext context, bool gone)
{
    struct look look;
    do {
        if (!ask(row, &look))
            return;
    } while (!is_up_to_date(row, &look));
    uint64_t left = look.reserved > row->charged ? look.reserved - row->charged : 0;
    uint64_t kept = least_of(left, row->ending);
    confirm(row->index, kept);
    given_back(row, row->ending - kept);
    __atomic_store_n(&row->charged, row->charged + kept, __ATOMIC_SEQ_CST);
    row->ending = 0;
    row->changes++;
    if (gone && row->context == context)
        __atomic_store_n(&row->context, NULL, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&process()->pools.lock);
}

void pools_context_ended(CUcontext context, bool gone)
{
    for (struct pool *row = first_row(); row != NULL; row = row->next)
        if (__atomic_load_n(&row->pool, __ATOMIC_ACQUIRE) != NULL &&
            __atomic_load_n(&row->context, __ATOMIC_ACQUIRE) == context)
            settle_ended(row, context, gone);
}

void pools_will_shrink(void)
{
    __atomic_store_n(&process()->pools.shrinking_ns, clock_ns(), __ATOMIC_RELAXED);
    wakeup_send();
}

bool pools_shrinking(uint64_t now_ns)
{
    uint64_t since = __atomic_load_n(&process()->pools.shrinking_ns, __ATOMIC_RELAXED);
    return since != 0 && now_ns < since + SHRINKS_WITHIN_NS;
}
