#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "sim_memory.h"

/* How a pool grows. A real driver's step is not documented either: a caller that counts must ask the pool. */
#define STEP sim_seat.node->settings.pool_step
#define UNIT 512ULL

static struct CUmemPoolHandle_st *pools; /* guarded by sim_process_lock, as all below */
static struct CUmemPoolHandle_st defaults[SIM_DEVICES];
static CUmemoryPool currents[SIM_DEVICES]; /* NULL for the default */
static struct CUmemPoolHandle_st of_host = {.on_host = 1};

CUmemoryPool *sim_pool_current(uint32_t device)
{
    return &currents[device];
}

CUmemoryPool sim_pool_default(uint32_t device)
{
    defaults[device].device = device;
    return &defaults[device];
}

CUmemoryPool sim_pool_of_host(void)
{
    return &of_host;
}

/* What a pool takes of its device. */
static CUresult charge(CUmemoryPool pool, uint64_t bytes)
{
    return pool->on_host ? CUDA_SUCCESS : sim_charge(pool->context, bytes);
}

static void discharge(CUmemoryPool pool, uint64_t bytes)
{
    if (!pool->on_host) {
        sim_discharge(pool->context, bytes);
    }
}

int sim_pool_backed(CUmemoryPool pool)
{
    return pool->context != NULL && pool->context->alive && pool->context->life == pool->life;
}

static void adopt(CUmemoryPool pool, CUcontext context)
{
    if (!sim_pool_backed(pool)) {
        pool->context = context;
        pool->life = context->life;
        pool->reserved = 0; /* went with the context before */
        pool->used = 0;
        pool->split = 0;
    }
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t needed = (pool->used + bytes + STEP - 1) / STEP * STEP;
    if (needed > pool->reserved) {
        CUresult result = charge(pool, needed - pool->reserved);
        if (result != CUDA_SUCCESS) { /* near the end of the memory it takes what it must */
            needed = sim_granules(pool->used + bytes);
            result = needed <= pool->reserved ? CUDA_SUCCESS : charge(pool, needed - pool->reserved);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        pool->reserved = needed;
        pool->reserved_high = needed > pool->reserved_high ? needed : pool->reserved_high;
    }
    pool->used += bytes;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    return CUDA_SUCCESS;
}

void sim_pool_shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t floor = ((pool->used > keep ? pool->used : keep) + STEP - 1) / STEP * STEP;
    if (floor < pool->reserved && sim_pool_backed(pool)) {
        discharge(pool, pool->reserved - floor);
        pool->reserved = floor;
    }
}

void sim_pools_release(void)
{
    pthread_mutex_lock(&sim_process_lock);
    for (uint32_t i = 0; i < SIM_DEVICES; i++) {
        sim_pool_shrink(&defaults[i], defaults[i].threshold);
    }
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        sim_pool_shrink(pool, pool->threshold);
    }
    pthread_mutex_unlock(&sim_process_lock);
}

/* What a captured stream allocates is its graph's, and charged when that is uploaded. */
static CUresult capture(CUdeviceptr *address, uint64_t bytes, CUstream stream)
{
    CUresult result = sim_capture_allocate(stream, sim_granules(bytes));
    pthread_mutex_lock(&sim_process_lock);
    *address = result == CUDA_SUCCESS ? sim_addresses(bytes, SIM_GRANULE) : 0;
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static CUresult allocate(CUdeviceptr *address, uint64_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || address == NULL || bytes == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_capturing(stream)) {
        return capture(address, bytes, stream);
    }
    static const struct sim_op in_order = {.kind = OP_FLAG, .started = 1}; /* it takes a place in the queue, and no time */
    result = sim_submit(stream, &in_order, NULL);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_allocation *made = calloc(1, sizeof *made);
    if (made == NULL || bytes > sim_seat.node->settings.memory_bytes) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
    uint32_t device = stream->context->device;
    pthread_mutex_lock(&sim_process_lock);
    pool = pool != NULL ? pool : (currents[device] != NULL ? currents[device] : sim_pool_default(device));
    adopt(pool, sim_owner(stream->context));
    result = grow(pool, rounded);
    if (result == CUDA_SUCCESS) {
        *made = (struct sim_allocation){.context = pool->context, .bytes = rounded, .kind = SIM_POOLED, .pool = pool};
        made->address = sim_addresses(rounded, UNIT);
        sim_allocation_add(made);
        *address = made->address;
    }
    pthread_mutex_unlock(&sim_process_lock);
    if (result != CUDA_SUCCESS) {
        free(made);
    }
    return result;
}

static CUresult release(CUdeviceptr address, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_capturing(stream)) {
        return sim_capture_allocate(stream, 0); /* a node without effect: a graph keeps its memory until it is trimmed */
    }
    result = sim_release(address, SIM_POOLED);
    return result == CUDA_ERROR_INVALID_VALUE ? sim_release(address, SIM_LINEAR) : result;
}

static void end(CUmemoryPool pool)
{
    if (sim_pool_backed(pool)) {
        discharge(pool, pool->reserved - pool->split);
    }
    free(pool);
}

void sim_pool_returned(CUmemoryPool pool, uint64_t bytes, uint64_t taken_along)
{
    pool->used -= bytes < pool->used ? bytes : pool->used;
    pool->reserved -= taken_along < pool->reserved ? taken_along : pool->reserved;
    pool->split -= taken_along < pool->split ? taken_along : pool->split;
    if (pool->destroyed && pool->used == 0) {
        end(pool);
    }
}

SIM_TWINS(cuMemAllocAsync, _ptsz, COST_MEMORY, (CUdeviceptr *address, size_t bytes, CUstream stream),
          allocate(address, bytes, NULL, stream))
SIM_TWINS(cuMemAllocFromPoolAsync, _ptsz, COST_MEMORY,
          (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream),
          pool == NULL || pool->imported ? CUDA_ERROR_INVALID_VALUE : allocate(address, bytes, pool, stream))
SIM_TWINS(cuMemFreeAsync, _ptsz, COST_MEMORY, (CUdeviceptr address, CUstream stream), release(address, stream))

CUresult sim_pool_make(CUmemoryPool *pool, uint32_t device, int on_host)
{
    struct CUmemPoolHandle_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim_process_lock);
    *made = (struct CUmemPoolHandle_st){.next = pools, .device = device, .on_host = on_host};
    pools = made;
    pthread_mutex_unlock(&sim_process_lock);
    *pool = made;
    return CUDA_SUCCESS;
}

/* Only a pool that was made is found: the defaults are in no list. */
CUresult sim_pool_end(CUmemoryPool pool)
{
    pthread_mutex_lock(&sim_process_lock);
    struct CUmemPoolHandle_st **link = &pools;
    while (*link != NULL && *link != pool) {
        link = &(*link)->next;
    }
    int found = *link != NULL;
    if (found) {
        *link = pool->next;
        currents[pool->device] = currents[pool->device] == pool ? NULL : currents[pool->device];
        pool->destroyed = 1;
        if (pool->used == 0 || pool->imported) {
            end(pool);
        } else {
            sim_pool_shrink(pool, 0);
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
