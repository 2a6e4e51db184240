/* Copies and fills: time on a copy engine or on the device. Contents are not moved, for there are none on the device. */
#include "capture.h"

enum direction { TO_DEVICE, FROM_DEVICE, ON_DEVICE };

/* Copies on the device move about 1.2 TB/s, as high-bandwidth memory does, and need the compute engine. */
#define ON_DEVICE_BYTES_PER_US 1200000ULL

static CUresult queue(CUstream handle, uint64_t bytes, enum direction direction, int wait)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_op op = direction == ON_DEVICE ? sim_kernel_op(2000 + bytes * 1000 / ON_DEVICE_BYTES_PER_US, 100)
                                              : sim_copy_op(bytes, direction == FROM_DEVICE);
    if (sim_capturing(stream)) {
        return wait ? sim_capture_spoil(stream) : sim_capture_add(stream, &op);
    }
    if (wait && sim_capture_forbids()) {
        return sim_capture_spoil(NULL);
    }
    uint64_t position = 0;
    result = sim_submit(stream, &op, &position);
    if (result == CUDA_SUCCESS && wait) {
        sim_await(stream->context, stream->channel, position);
    }
    return result;
}

SIM_SYNC_TWINS(cuMemcpy, _ptds, COST_COPY, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
               ((void)to, (void)from, queue(stream, bytes, ON_DEVICE, 1)))
SIM_SYNC_TWINS(cuMemcpyHtoD_v2, _ptds, COST_COPY, (CUdeviceptr to, const void *from, size_t bytes),
               ((void)to, (void)from, queue(stream, bytes, TO_DEVICE, 1)))
SIM_SYNC_TWINS(cuMemcpyDtoH_v2, _ptds, COST_COPY, (void *to, CUdeviceptr from, size_t bytes),
               ((void)to, (void)from, queue(stream, bytes, FROM_DEVICE, 1)))
SIM_SYNC_TWINS(cuMemcpyDtoD_v2, _ptds, COST_COPY, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
               ((void)to, (void)from, queue(stream, bytes, ON_DEVICE, 0)))
SIM_SYNC_TWINS(cuMemsetD8_v2, _ptds, COST_COPY, (CUdeviceptr to, unsigned char value, size_t count),
               ((void)to, (void)value, queue(stream, count, ON_DEVICE, 0)))
SIM_SYNC_TWINS(cuMemsetD16_v2, _ptds, COST_COPY, (CUdeviceptr to, unsigned short value, size_t count),
               ((void)to, (void)value, queue(stream, count * 2, ON_DEVICE, 0)))
SIM_SYNC_TWINS(cuMemsetD32_v2, _ptds, COST_COPY, (CUdeviceptr to, unsigned int value, size_t count),
               ((void)to, (void)value, queue(stream, count * 4, ON_DEVICE, 0)))

SIM_TWINS(cuMemcpyAsync, _ptsz, COST_COPY, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          ((void)to, (void)from, queue(stream, bytes, ON_DEVICE, 0)))
SIM_TWINS(cuMemcpyHtoDAsync_v2, _ptsz, COST_COPY, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream),
          ((void)to, (void)from, queue(stream, bytes, TO_DEVICE, 0)))
SIM_TWINS(cuMemcpyDtoHAsync_v2, _ptsz, COST_COPY, (void *to, CUdeviceptr from, size_t bytes, CUstream stream),
          ((void)to, (void)from, queue(stream, bytes, FROM_DEVICE, 0)))
SIM_TWINS(cuMemcpyDtoDAsync_v2, _ptsz, COST_COPY, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
          ((void)to, (void)from, queue(stream, bytes, ON_DEVICE, 0)))
SIM_TWINS(cuMemsetD8Async, _ptsz, COST_COPY, (CUdeviceptr to, unsigned char value, size_t count, CUstream stream),
          ((void)to, (void)value, queue(stream, count, ON_DEVICE, 0)))
SIM_TWINS(cuMemsetD16Async, _ptsz, COST_COPY, (CUdeviceptr to, unsigned short value, size_t count, CUstream stream),
          ((void)to, (void)value, queue(stream, count * 2, ON_DEVICE, 0)))
SIM_TWINS(cuMemsetD32Async, _ptsz, COST_COPY, (CUdeviceptr to, unsigned int value, size_t count, CUstream stream),
          ((void)to, (void)value, queue(stream, count * 4, ON_DEVICE, 0)))

static enum direction between(CUmemorytype from, CUmemorytype to)
{
    if (from == CU_MEMORYTYPE_HOST) {
        return TO_DEVICE;
    }
    return to == CU_MEMORYTYPE_HOST ? FROM_DEVICE : ON_DEVICE;
}

static CUresult queue_2d(const CUDA_MEMCPY2D *copy, CUstream stream, int wait)
{
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE
                        : queue(stream, copy->WidthInBytes * copy->Height,
                                between(copy->srcMemoryType, copy->dstMemoryType), wait);
}

static CUresult queue_3d(const CUDA_MEMCPY3D *copy, CUstream stream, int wait)
{
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE
                        : queue(stream, copy->WidthInBytes * copy->Height * copy->Depth,
                                between(copy->srcMemoryType, copy->dstMemoryType), wait);
}

SIM_SYNC_TWINS(cuMemcpy2D_v2, _ptds, COST_COPY, (const CUDA_MEMCPY2D *copy), queue_2d(copy, stream, 1))
SIM_SYNC_TWINS(cuMemcpy2DUnaligned_v2, _ptds, COST_COPY, (const CUDA_MEMCPY2D *copy), queue_2d(copy, stream, 1))
SIM_SYNC_TWINS(cuMemcpy3D_v2, _ptds, COST_COPY, (const CUDA_MEMCPY3D *copy), queue_3d(copy, stream, 1))
SIM_TWINS(cuMemcpy2DAsync_v2, _ptsz, COST_COPY, (const CUDA_MEMCPY2D *copy, CUstream stream), queue_2d(copy, stream, 0))
SIM_TWINS(cuMemcpy3DAsync_v2, _ptsz, COST_COPY, (const CUDA_MEMCPY3D *copy, CUstream stream), queue_3d(copy, stream, 0))
SIM_TWINS(cuMemPrefetchAsync, _ptsz, COST_COPY, (CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream),
          ((void)address, queue(stream, bytes, to == CU_DEVICE_CPU ? FROM_DEVICE : TO_DEVICE, 0)))
SIM_TWINS(cuMemPrefetchAsync_v2, _ptsz, COST_COPY,
          (CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned int flags, CUstream stream),
          ((void)address, (void)flags,
           queue(stream, bytes, to.type == CU_MEM_LOCATION_TYPE_DEVICE ? TO_DEVICE : FROM_DEVICE, 0)))
