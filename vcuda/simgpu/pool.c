#include "pool.h"

#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "memory.h"

/* How a pool grows. A real driver's step is its own affair too: who counts must ask the pool. */
#define STEP (32ULL << 20)
#define UNIT 512ULL

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
};

static struct CUmemPoolHandle_st *pools;                 /* guarded by sim_process_lock, as all below */
static struct CUmemPoolHandle_st defaults[SIM_DEVICES];
static struct CUmemPoolHandle_st *currents[SIM_DEVICES]; /* NULL for the default */

static struct CUmemPoolHandle_st *default_pool(uint32_t device)
{
    defaults[device].device = device;
    return &defaults[device];
}

static int valid(CUdevice device)
{
    return device >= 0 && (uint32_t)device < sim_seat.node->settings.devices;
}

static int backed(CUmemoryPool pool)
{
    return pool->context != NULL && pool->context->alive && pool->context->life == pool->life;
}

static void adopt(CUmemoryPool pool, CUcontext context)
{
    if (!backed(pool)) {
        pool->context = context;
        pool->life = context->life;
        pool->reserved = 0; /* went with the context before */
        pool->used = 0;
    }
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes)
{
    uint64_t needed = (pool->used + bytes + STEP - 1) / STEP * STEP;
    if (needed > pool->reserved) {
        CUresult result = sim_charge(pool->context, needed - pool->reserved);
        if (result != CUDA_SUCCESS) { /* near the end of the memory it takes what it must */
            needed = sim_granules(pool->used + bytes);
            result = needed <= pool->reserved ? CUDA_SUCCESS : sim_charge(pool->context, needed - pool->reserved);
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

static void shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t floor = ((pool->used > keep ? pool->used : keep) + STEP - 1) / STEP * STEP;
    if (floor < pool->reserved && backed(pool)) {
        sim_discharge(pool->context, pool->reserved - floor);
        pool->reserved = floor;
    }
}

void sim_pools_release(void)
{
    pthread_mutex_lock(&sim_process_lock);
    for (uint32_t i = 0; i < SIM_DEVICES; i++) {
        shrink(&defaults[i], defaults[i].threshold);
    }
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        shrink(pool, pool->threshold);
    }
    pthread_mutex_unlock(&sim_process_lock);
}

/* What a captured stream allocates is its graph's, charged when that is uploaded: not simulated through capture. */
static CUresult allocate(CUdeviceptr *address, uint64_t bytes, CUmemoryPool pool, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || address == NULL || bytes == 0) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_capturing(stream)) {
        return sim_capture_spoil(stream);
    }
    struct sim_allocation *made = calloc(1, sizeof *made);
    if (made == NULL || bytes > sim_seat.node->settings.memory_bytes) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t rounded = (bytes + UNIT - 1) / UNIT * UNIT;
    uint32_t device = stream->context->device;
    pthread_mutex_lock(&sim_process_lock);
    pool = pool != NULL ? pool : (currents[device] != NULL ? currents[device] : default_pool(device));
    adopt(pool, stream->context);
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
    result = sim_capturing(stream) ? sim_capture_spoil(stream) : sim_release(address, SIM_POOLED);
    return result == CUDA_ERROR_INVALID_VALUE ? sim_release(address, SIM_LINEAR) : result;
}

void sim_pool_returned(CUmemoryPool pool, uint64_t bytes)
{
    pool->used -= bytes < pool->used ? bytes : pool->used;
}

SIM_TWINS(cuMemAllocAsync, _ptsz, COST_MEMORY, (CUdeviceptr *address, size_t bytes, CUstream stream),
          allocate(address, bytes, NULL, stream))
SIM_TWINS(cuMemAllocFromPoolAsync, _ptsz, COST_MEMORY,
          (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream),
          pool == NULL ? CUDA_ERROR_INVALID_VALUE : allocate(address, bytes, pool, stream))
SIM_TWINS(cuMemFreeAsync, _ptsz, COST_MEMORY, (CUdeviceptr address, CUstream stream), release(address, stream))

CUresult sim_pool_make(CUmemoryPool *pool, uint32_t device)
{
    struct CUmemPoolHandle_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim_process_lock);
    *made = (struct CUmemPoolHandle_st){.next = pools, .device = device};
    pools = made;
    pthread_mutex_unlock(&sim_process_lock);
    *pool = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL || properties == NULL || !valid(properties->location.id)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_pool_make(pool, (uint32_t)properties->location.id);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL || (pool >= defaults && pool < defaults + SIM_DEVICES)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    struct CUmemPoolHandle_st **link = &pools;
    while (*link != NULL && *link != pool) {
        link = &(*link)->next;
    }
    int found = *link != NULL;
    if (found) {
        *link = pool->next;
        currents[pool->device] = currents[pool->device] == pool ? NULL : currents[pool->device];
        pool->used = 0;
        shrink(pool, 0);
        free(pool);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

static uint64_t *field_of(CUmemoryPool pool, CUmemPool_attribute which)
{
    switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        return &pool->reserved;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        return &pool->used;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        return &pool->used_high;
    default:
        return NULL;
    }
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    SIM_ENTER(COST_QUERY);
    const uint64_t *field = pool == NULL || value == NULL ? NULL : field_of(pool, which);
    if (field == NULL) { /* the reuse policies: whole numbers that are always 1 */
        if (pool != NULL && value != NULL && which >= 1 && which <= 3) {
            *(int *)value = 1;
            return CUDA_SUCCESS;
        }
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    *(cuuint64_t *)value = *field;
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    SIM_ENTER(COST_QUERY);
    if (pool == NULL || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pthread_mutex_lock(&sim_process_lock);
        pool->threshold = *(cuuint64_t *)value;
        pthread_mutex_unlock(&sim_process_lock);
    }
    return CUDA_SUCCESS;
}

static CUresult current(CUmemoryPool *pool, CUdevice device, int as_default)
{
    if (pool == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    int own = !as_default && currents[device] != NULL;
    *pool = own ? currents[device] : default_pool((uint32_t)device);
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return current(pool, device, 1);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    SIM_ENTER(COST_QUERY);
    return current(pool, device, 0);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    SIM_ENTER(COST_QUERY);
    if (pool == NULL || !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    currents[device] = pool;
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}
