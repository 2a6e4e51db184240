/* hooks_pools.c: stream-ordered allocation. */
#include "hook.h"
#include "pools.h"

/* One allocation under way, for pools_allocate. */
struct call {
    __typeof__(cuMemAllocFromPoolAsync) *allocate;
    __typeof__(cuMemFreeAsync) *release;
    CUdeviceptr *pointer;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
};

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
    REAL(cuStreamSynchronize)(call->stream);
    REAL(cuMemPoolTrimTo)(call->pool, 0);
}

static CUresult from_pool(struct call *call)
{
    CUcontext context;
    int index;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    REAL(cuStreamIsCapturing)(call->stream, &status);
    if (status != CU_STREAM_CAPTURE_STATUS_NONE || call->pointer == NULL || call->bytes == 0 ||
        !current_device(&context, &index)) /* captured: becomes a node of the graph, no memory yet */
        return allocate(call);
    return pools_allocate(call->pool, call->bytes, allocate, undo, call);
}

#define FROM_POOL(name, release)                                                                       \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)       \
    {                                                                                                  \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, pool, stream);                                        \
        struct call call = {REAL(name), REAL(release), pointer, bytes, pool, stream};                  \
        return from_pool(&call);                                                                       \
    }

FROM_POOL(cuMemAllocFromPoolAsync, cuMemFreeAsync)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz)

/* The device's current pool is the one that the driver would take. */
#define FROM_CURRENT(name, from_pool_name, release)                                                    \
    EXPORT CUresult name(CUdeviceptr *pointer, size_t bytes, CUstream stream)                          \
    {                                                                                                  \
        CUdevice device;                                                                               \
        CUmemoryPool pool;                                                                             \
        PASS_UNLESS_ACTIVE(name, pointer, bytes, stream);                                              \
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||                                           \
            REAL(cuDeviceGetMemPool)(&pool, device) != CUDA_SUCCESS)                                   \
            return REAL(name)(pointer, bytes, stream);                                                 \
        struct call call = {REAL(from_pool_name), REAL(release), pointer, bytes, pool, stream};        \
        return from_pool(&call);                                                                       \
    }

FROM_CURRENT(cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync)
FROM_CURRENT(cuMemAllocAsync_ptsz, cuMemAllocFromPoolAsync_ptsz, cuMemFreeAsync_ptsz)

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
    if (result == CUDA_SUCCESS && used == 0)
        discharge(left.index, left.charged);
    else
        confirm(left.index, left.charged);
    return result;
}
