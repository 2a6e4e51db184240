/* Calls about memory pools themselves; pool.c allocates from them. */
#include "sim_memory.h"
#include "pool.h"

static int valid(CUdevice device)
{
    return device >= 0 && (uint32_t)device < sim_seat.node->settings.devices;
}

static int is_host(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
           location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL || properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int managed = properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED; /* as if all of it came to the first device */
    int device = managed ? properties->location.id : sim_location_device(&properties->location);
    int on_host = !managed && is_host(&properties->location);
    if (!on_host && !valid(device)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_pool_make(pool, on_host ? 0 : (uint32_t)device, on_host);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_pool_end(pool);
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    sim_pool_shrink(pool, keep);
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
    int has = pool->imported || sim_pool_backed(pool) || which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    *(cuuint64_t *)value = has ? *field : 0;
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
    CUmemoryPool set = *sim_pool_current((uint32_t)device);
    *pool = set != NULL && !as_default ? set : sim_pool_default((uint32_t)device);
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
    *sim_pool_current((uint32_t)device) = pool;
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

/* Of CUDA 13 on. One pool serves all of the host. */
static CUresult pool_at(CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type, int as_default)
{
    if (pool == NULL || location == NULL || type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_host(location)) {
        *pool = sim_pool_of_host();
        return CUDA_SUCCESS;
    }
    return current(pool, sim_location_device(location), as_default);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_ENTER(COST_QUERY);
    return pool_at(pool, location, type, 1);
}

SIM_EXPORT CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    SIM_ENTER(COST_QUERY);
    return pool_at(pool, location, type, 0);
}
