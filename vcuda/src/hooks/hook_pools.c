/* hook_pools.c: stream-ordered allocation. */
#include "hooks/hook.h"
#include "memory/deferred_frees.h"
#include "memory/linear.h"
#include "memory/pools.h"

#define PER_THREAD(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

/* One allocation under way, for pools_allocate. */
struct call {
    __typeof__(cuMemAllocFromPoolAsync) *from_pool;
    __typeof__(cuMemAllocAsync) *from_current; /* this one where `from_pool` is NULL */
    __typeof__(cuMemFreeAsync) *release;
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream, asked; /* `asked`: the same, where no stream means one of each thread's own */
};

/* A call recorded into a graph has no effect on memory yet. */
static bool captured(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    REAL(cuStreamIsCapturing)(stream, &status);
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult allocate(void *argument)
{
    struct call *call = argument;
    if (call->from_pool != NULL)
        return call->from_pool(call->pointer, call->bytes, call->pool, call->stream);
    return call->from_current(call->pointer, call->bytes, call->stream);
}

/* In the stream's order: it is never waited for, since it may wait for what the program does after this call. */
static void release(void *argument)
{
    struct call *call = argument;
    call->release(*call->pointer, call->stream);
}

static CUresult from_pool(struct call *call)
{
    struct pool *pool = pools_take(call->pool, call->bytes);
    if (unlikely(pool == NULL)) {
        if (captured(call->asked) || call->pointer == NULL || call->bytes == 0)
            return allocate(call);
        return pools_allocate(call->pool, call->bytes, call->asked, allocate, release, call);
    }
    CUresult result = allocate(call);
    return likely(pools_taken(pool, call->bytes)) ? result : pools_over(pool, result, release, call);
}

#define FROM_POOL(name, frees, asks)                                                             \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) \
    {                                                                                            \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, pool, stream);                                  \
        struct call call = {.from_pool = REAL(name),                                             \
                            .release = REAL(frees),                                              \
                            .pointer = pointer,                                                  \
                            .bytes = bytes,                                                      \
                            .pool = pool,                                                        \
                            .stream = stream,                                                    \
                            .asked = asks};                                                      \
        return from_pool(&call);                                                                 \
    }

FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync, stream)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, PER_THREAD(stream))

/* The pool from which the driver takes it: the current pool of the stream's device, not of the current context's. */
static CUmemoryPool pool_of(CUstream stream)
{
    CUcontext context, popped;
    CUmemoryPool pool = NULL;
    CUdevice device;
    int index = 0;
    if (config.device_count != 1 && !stream_device(stream, &context, &index))
        return NULL;
    CUmemoryPool known = pools_current(index);
    if (likely(known != NULL))
        return known;
    if (!stream_device(stream, &context, &index) || REAL(cuCtxPushCurrent_v2)(device_context_for_all(context)) != CUDA_SUCCESS)
        return NULL;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS || REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)
        pool = NULL;
    REAL(cuCtxPopCurrent_v2)(&popped);
    pools_set_current(index, pool);
    return pool;
}

#define FROM_CURRENT(name, frees, asks)                                        \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream)  \
    {                                                                          \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, stream);                      \
        struct call call = {.from_current = REAL(name),                        \
                            .release = REAL(frees),                            \
                            .pointer = pointer,                                \
                            .bytes = bytes,                                    \
                            .pool = pool_of(asks),                             \
                            .stream = stream,                                  \
                            .asked = asks};                                    \
        return likely(call.pool != NULL) ? from_pool(&call) : allocate(&call); \
    }

FROM_CURRENT(cuMemAllocAsync, cuMemFreeAsync, stream)
FROM_CURRENT(cuMemAllocAsync_ptsz, cuMemFreeAsync_ptsz, PER_THREAD(stream))

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    PASS_UNLESS_ACTIVE(cuDeviceSetMemPool, device, pool);
    CUresult result = REAL(cuDeviceSetMemPool)(device, pool);
    pools_forget_current();
    return result;
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    PASS_UNLESS_ACTIVE(cuMemSetMemPool, location, type, pool);
    CUresult result = REAL(cuMemSetMemPool)(location, type, pool);
    pools_forget_current();
    return result;
}

static bool is_noted(enum kind kind, CUdeviceptr pointer)
{
    struct allocation row;
    return allocations_find(&process()->allocations, kind, pointer, &row);
}

/* Linear memory, too, may be freed in a stream's order, and is charged until the stream has come to it. What pools get back
 * they keep until they are waited for. */
static CUresult free_async(__typeof__(cuMemFreeAsync) *frees, CUdeviceptr pointer, CUstream stream, CUstream asked)
{
    struct allocation linear, import;
    bool noted = is_noted(KIND_LINEAR, pointer) || is_noted(KIND_IMPORT, pointer);
    if (noted && captured(asked))
        return frees(pointer, stream);
    bool ours = noted && linear_freeing(pointer, &linear);
    CUresult result = frees(pointer, stream);
    if (ours && result == CUDA_SUCCESS)
        deferred_frees_add(&linear, asked);
    else if (ours)
        linear_freed(result, true, &linear);
    if (ours || result != CUDA_SUCCESS)
        return result;
    if (noted && allocations_take(&process()->allocations, KIND_IMPORT, pointer, &import))
        opened_of_others(-(int)import.count);
    pools_will_shrink();
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    PASS_UNLESS_ACTIVE(cuMemFreeAsync, pointer, stream);
    return free_async(REAL(cuMemFreeAsync), pointer, stream, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    PASS_UNLESS_ACTIVE(cuMemFreeAsync_ptsz, pointer, stream);
    return free_async(REAL(cuMemFreeAsync_ptsz), pointer, stream, PER_THREAD(stream));
}

/* The device whose memory a pool of these properties takes; POOL_UNCHARGED when that is the host's. Managed memory that
 * prefers no device can all be on the current one. */
static bool device_of(const CUmemPoolProps *properties, int *index, CUdevice *ordinal)
{
    CUcontext context;
    *index = POOL_UNCHARGED;
    if (properties == NULL)
        return true;
    if (device_of_location(&properties->location, ordinal)) {
        *index = device_index(*ordinal);
        return *index >= 0;
    }
    if (properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && !current_device(&context, index))
        *index = POOL_UNCHARGED;
    return true;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    int index;
    CUdevice ordinal;
    PASS_UNLESS_ACTIVE(cuMemPoolCreate, pool, properties);
    if (!device_of(properties, &index, &ordinal))
        return device_refusal(ordinal);
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS)
        pools_add(*pool, index);
    return result;
}

/* The driver's own pool of the host's memory takes none of a device. Those of devices are known by the device. */
static CUresult found(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location, CUmemAllocationType type)
{
    CUdevice ordinal;
    if (result == CUDA_SUCCESS && type == CU_MEM_ALLOCATION_TYPE_PINNED && !device_of_location(location, &ordinal))
        pools_add(*pool, POOL_UNCHARGED);
    return result;
}

#define FINDS(name)                                                                             \
    EXPORT CUresult name(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type) \
    {                                                                                           \
        PASS_UNLESS_ACTIVE(name, pool, location, type);                                         \
        return found(REAL(name)(pool, location, type), pool, location, type);                   \
    }

FINDS(cuMemGetDefaultMemPool)
FINDS(cuMemGetMemPool)

/* Nothing can be allocated from an imported pool, and what it has is charged to the process that made it. */
EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type,
                                                   unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemPoolImportFromShareableHandle, pool, shareable, type, flags);
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
    if (result == CUDA_SUCCESS)
        pools_add(*pool, POOL_UNCHARGED);
    return result;
}

EXPORT CUresult cuMemPoolExportToShareableHandle(void *shareable, CUmemoryPool pool, CUmemAllocationHandleType type,
                                                 unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemPoolExportToShareableHandle, shareable, pool, type, flags);
    CUresult result = REAL(cuMemPoolExportToShareableHandle)(shareable, pool, type, flags);
    if (result == CUDA_SUCCESS)
        pools_export(pool);
    return result;
}

/* A lower threshold lets the pool give back what it kept. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    PASS_UNLESS_ACTIVE(cuMemPoolSetAttribute, pool, which, value);
    CUresult result = REAL(cuMemPoolSetAttribute)(pool, which, value);
    if (result == CUDA_SUCCESS && which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        pools_settle(pool);
        pools_will_shrink();
    }
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    PASS_UNLESS_ACTIVE(cuMemPoolTrimTo, pool, keep);
    CUresult result = REAL(cuMemPoolTrimTo)(pool, keep);
    pools_settle(pool);
    return result;
}

/* The driver keeps what of it is not freed, or freed in an order to which no stream has come yet, and from now on there is no pool
 * to ask about that: it is left to the container until the node has seen the driver release it. */
static void leave_to_the_container(const struct pool *pool)
{
    if (pool->charged == 0)
        return;
    if (!pool->exported)
        others_may_hold(pool->index, pool->charged);
    orphan(pool->index, pool->charged);
    want_sample(pool->index);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    PASS_UNLESS_ACTIVE(cuMemPoolDestroy, pool);
    pools_trim(pool, 0);
    pools_settle(pool);
    struct pool left = pools_forget(pool);
    pools_forget_current();
    unsettle(left.index, left.charged);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS) {
        leave_to_the_container(&left);
    } else {
        confirm(left.index, left.charged);
        pools_put_back(&left);
    }
    return result;
}
