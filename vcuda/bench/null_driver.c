/* null_driver.c: a driver that does nothing, so that what is left is the caller's and the shim's own time. Only what the
 * shim itself calls to measure (events) takes as long as with a real driver. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdint.h>
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
NOTHING(cuMemFree_v2, (CUdeviceptr pointer))
NOTHING(cuEventDestroy_v2, (CUevent event))
NOTHING(cuLaunchKernel, (CUfunction f, unsigned int a, unsigned int b, unsigned int c, unsigned int d, unsigned int e,
                         unsigned int g, unsigned int h, CUstream stream, void **parameters, void **extra))

static void take(uint64_t ns)
{
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((uint64_t)(now.tv_sec - from.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec - (uint64_t)from.tv_nsec < ns);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    take(700);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    take(80);
    return CUDA_SUCCESS;
}

/* As of a GPU that is busy. */
CUresult cuStreamQuery(CUstream stream)
{
    take(300);
    return CUDA_ERROR_NOT_READY;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    static __thread uint64_t count;
    *pointer = (++count % 1024 + 1) << 21;
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
    take(100);
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
    *stream = (CUstream)32;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    *event = (CUevent)48;
    return CUDA_SUCCESS;
}

/* Each batch seems to have taken a little time: a microsecond for each call. */
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    static float now;
    take(300);
    *ms = now += 0.001f;
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
