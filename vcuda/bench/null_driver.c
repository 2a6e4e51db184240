/* null_driver.c: a driver that does nothing, so that what is left is the caller's and the shim's own time. Only what the
 * shim itself calls to measure takes as long as on an H100 with driver 580.159.04 (recording an event by itself, asking for one that
 * has happened). */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NOTHING(name, parameters)                \
    CUresult name parameters                     \
    {                                            \
        return CUDA_SUCCESS;                     \
    }

NOTHING(cuInit, (unsigned int flags))
NOTHING(cuCtxPushCurrent_v2, (CUcontext context))
NOTHING(cuEventSynchronize, (CUevent event))
NOTHING(cuStreamSynchronize, (CUstream stream))
NOTHING(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode))
NOTHING(cuStreamDestroy_v2, (CUstream stream))
NOTHING(cuMemFree_v2, (CUdeviceptr pointer))
NOTHING(cuEventDestroy_v2, (CUevent event))
NOTHING(cuLaunchKernel, (CUfunction f, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e,
                         unsigned int g, unsigned int h, CUstream stream, void **parameters, void **extra))

/* Calls that take time, which only the shim makes. Atomic; read by calls.c. */
unsigned long null_driver_calls;

static void take(uint64_t ns)
{
    __atomic_add_fetch(&null_driver_calls, 1, __ATOMIC_RELAXED);
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((uint64_t)(now.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec - (uint64_t)from.tv_nsec < ns);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    take(1500);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    take(131);
    return CUDA_SUCCESS;
}

/* Whether the GPU is through with each launch before the next, as with kernels of a microsecond on an H100. */
static bool idles(void)
{
    return getenv("NULL_DRIVER_IDLES") != NULL;
}

CUresult cuStreamQuery(CUstream stream)
{
    take(144);
    return idles() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    static __thread uint64_t count;
    *pointer = (++count % 1024 + 1) << 21;
    return CUDA_SUCCESS;
}

/* A pool that has 32 MiB, of which 16 are in use. */
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    *pointer = (1ull << 40) + (16ull << 20);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocAsync(pointer, bytes, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    take(33);
    *(cuuint64_t *)value = which == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? 16u << 20 : 32u << 20;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    take(50);
    *pool = (CUmemoryPool)80;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return cuDeviceGetMemPool(pool, device);
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    take(50);
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    *active = 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    *context = (CUcontext)16;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    take(16);
    return cuCtxGetCurrent(context);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return cuCtxGetCurrent(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    return cuCtxGetCurrent(context);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    static uintptr_t last = 16;
    *stream = (CUstream)__atomic_add_fetch(&last, 16, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    *event = (CUevent)48;
    return CUDA_SUCCESS;
}

/* Each batch seems to have taken a little time: a microsecond for each call, or as long as two events are apart that an H100
 * records behind one another. */
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    static float now;
    take(259);
    *ms = now += idles() ? 0.004f : 0.001f;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    memcpy(uuid->bytes, "SIMGPU\0\0\0\0\0\0\0\0\0", 16);
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    return CUDA_ERROR_NOT_FOUND;
}
