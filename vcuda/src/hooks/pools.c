/* pools.c: stream-ordered allocation. */
#include "hook.h"
#include "linear.h"
#include "pools.h"

#define PER_THREAD(stream) ((stream) == NULL ? CU_STREAM_PER_THREAD : (stream))

/* One allocation under way, for pools_allocate. */
struct call {
    __typeof__(cuMemAllocFromPoolAsync) *allocate;
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
    return call->allocate(call->pointer, call->bytes, call->pool, call->stream);
}

/* The pool had to grow beyond the limit: the allocation is taken back, and what the pool grew by. */
static void undo(void *argument)
{
    struct call *call = argument;
    call->release(*call->pointer, call->stream);
    REAL(cuStreamSynchronize)(call->asked);
    REAL(cuMemPoolTrimTo)(call->pool, 0);
}

static CUresult from_pool(struct call *call)
{
    CUcontext context;
    int index;
    if (captured(call->asked) || call->pointer == NULL || call->bytes == 0 ||
        !current_device(&context, &index))
        return allocate(call);
    return pools_allocate(call->pool, call->bytes, allocate, undo, call);
}

#define FROM_POOL(name, release, asked)                                                                       \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)       \
    {                                                                                                  \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, pool, stream);                                        \
        struct call call = {REAL(name), REAL(release), pointer, bytes, pool, stream, asked};                \
        return from_pool(&call);                                                                       \
    }

FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync, stream)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, PER_THREAD(stream))

/* The device of the stream, whichever context is current: its current pool is the one that the driver takes. */
static bool pool_of(CUstream stream, CUmemoryPool *pool)
{
    CUcontext context, popped;
    CUdevice device;
    int index;
    if (!stream_device(stream, &context, &index) || REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    bool found = REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS && REAL(cuDeviceGetMemPool)(pool, device) == CUDA_SUCCESS;
    REAL(cuCtxPopCurrent_v2)(&popped);
    return found;
}

#define FROM_CURRENT(name, from_pool_name, release, asked)                                                    \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream)                          \
    {                                                                                                  \
        CUmemoryPool pool;                                                                             \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, stream);                                              \
        if (!pool_of(stream, &pool))                                                                   \
            return REAL(name)(pointer, bytes, stream);                                                 \
        struct call call = {REAL(from_pool_name), REAL(release), pointer, bytes, pool, stream, asked};      \
        return from_pool(&call);                                                                       \
    }

FROM_CURRENT(cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync, stream)
FROM_CURRENT(cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz, PER_THREAD(stream))

/* Linear memory, too, may be freed in a stream's order. It is waited for, as cuMemFree does: when the stream comes to it is
 * not told. What pools get back they keep until they are waited for. */
static CUresult free_async(__typeof__(cuMemFreeAsync) *release, CUdeviceptr pointer, CUstream stream, CUstream waited)
{
    struct allocation linear, import;
    if (captured(waited))
        return release(pointer, stream);
    bool ours = linear_freeing(pointer, &linear);
    CUresult result = release(pointer, stream);
    if (ours) {
        if (result == CUDA_SUCCESS)
            REAL(cuStreamSynchronize)(waited);
        return linear_freed(result, true, &linear);
    }
    if (result == CUDA_SUCCESS) {
        if (allocations_take(&process()->allocations, KIND_IMPORT, pointer, &import))
            opened_of_others(-(int)import.count);
        pools_will_shrink();
    }
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

/* The device whose memory a pool of these properties takes; POOL_UNCHARGED when that is the host's. */
static bool device_of(const CUmemPoolProps *properties, int *index)
{
    *index = POOL_UNCHARGED;
    if (properties == NULL || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return true;
    *index = device_index(properties->location.id);
    return *index >= 0;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    int index;
    PASS_UNLESS_ACTIVE(cuMemPoolCreate, pool, properties);
    if (!device_of(properties, &index))
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS && !pools_add(*pool, index)) {
        REAL(cuMemPoolDestroy)(*pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* Nothing can be allocated from an imported pool, and what it has is charged to whoever made it. */
EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shareable, CUmemAllocationHandleType type,
                                                   unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuMemPoolImportFromShareableHandle, pool, shareable, type, flags);
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, shareable, type, flags);
    if (result == CUDA_SUCCESS && !pools_add(*pool, POOL_UNCHARGED)) {
        REAL(cuMemPoolDestroy)(*pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
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

/* What is still allocated from it stays charged as long as the process lives; usually nothing is. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    PASS_UNLESS_ACTIVE(cuMemPoolDestroy, pool);
    REAL(cuMemPoolTrimTo)(pool, 0);
    pools_settle(pool);
    uint64_t used = 0;
    REAL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
    struct pool left = pools_forget(pool);
    loosen(left.index, left.charged);
    CUresult result = REAL(cuMemPoolDestroy)(pool);
    if (result == CUDA_SUCCESS && left.exported)
        orphan(left.index, left.charged);
    else if (result == CUDA_SUCCESS && used == 0)
        discharge(left.index, left.charged);
    else
        confirm(left.index, left.charged);
    if (result != CUDA_SUCCESS)
        pools_put_back(&left);
    return result;
}
