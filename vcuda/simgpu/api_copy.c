/* Copies and fills: time on a copy engine or on the device. Contents are not moved, for there are none on the device. */
#include "capture.h"
#include "context.h"
#include "sim_memory.h"

enum direction { TO_DEVICE, FROM_DEVICE, ON_DEVICE, TO_PEER };

/* Copies on the device move about 1.2 TB/s, as high-bandwidth memory does, and need the compute engine. */
#define ON_DEVICE_BYTES_PER_US 1200000ULL

static CUresult queue(CUstream handle, uint64_t bytes, enum direction direction, int wait)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    struct sim_op op = direction == ON_DEVICE ? sim_kernel_op(2000 + bytes * 1000 / ON_DEVICE_BYTES_PER_US, 100)
                                              : sim_copy_op(bytes, direction != TO_DEVICE);
    wait = wait && (direction == TO_DEVICE || direction == FROM_DEVICE); /* the host waits for its own memory alone */
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

static int is_on_device(uint64_t address)
{
    pthread_mutex_lock(&sim_process_lock);
    int found = sim_allocation_within(address) != NULL;
    pthread_mutex_unlock(&sim_process_lock);
    return found;
}

static enum direction between(int from_device, int to_device)
{
    return !from_device ? TO_DEVICE : to_device ? ON_DEVICE : FROM_DEVICE;
}

/* Of addresses that do not say where they are. */
static enum direction by_address(CUdeviceptr to, CUdeviceptr from)
{
    return between(is_on_device(from), is_on_device(to));
}

SIM_SYNC_TWINS(cuMemcpy, _ptds, COST_COPY, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
               queue(stream, bytes, by_address(to, from), 1))
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
          queue(stream, bytes, by_address(to, from), 0))
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

/* One with an array on a side: an offset in it, and the side's other place. */
SIM_SYNC_TWINS(cuMemcpyDtoA_v2, _ptds, COST_COPY, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes),
               ((void)to, (void)offset, (void)from, queue(stream, bytes, ON_DEVICE, 0)))
SIM_SYNC_TWINS(cuMemcpyAtoD_v2, _ptds, COST_COPY, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes),
               ((void)to, (void)offset, (void)from, queue(stream, bytes, ON_DEVICE, 0)))
SIM_SYNC_TWINS(cuMemcpyAtoA_v2, _ptds, COST_COPY,
               (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),
               ((void)to, (void)to_offset, (void)from, (void)from_offset, queue(stream, bytes, ON_DEVICE, 0)))

static enum direction between_contexts(CUcontext to, CUcontext from)
{
    return to->device == from->device ? ON_DEVICE : TO_PEER;
}

static CUresult queue_peer(CUcontext to, CUcontext from, size_t bytes, CUstream stream)
{
    return to == NULL || from == NULL ? CUDA_ERROR_INVALID_CONTEXT
                                      : queue(stream, bytes, between_contexts(to, from), 0);
}

#define PEERS CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes

SIM_SYNC_TWINS(cuMemcpyPeer, _ptds, COST_COPY, (PEERS),
               ((void)to, (void)from, queue_peer(to_context, from_context, bytes, stream)))
SIM_TWINS(cuMemcpyPeerAsync, _ptsz, COST_COPY, (PEERS, CUstream stream),
          ((void)to, (void)from, queue_peer(to_context, from_context, bytes, stream)))

static int side_on_device(CUmemorytype type, CUdeviceptr address)
{
    return type == CU_MEMORYTYPE_UNIFIED ? is_on_device(address) : type != CU_MEMORYTYPE_HOST;
}

/* A box of bytes that no 64 bits can count is none. */
static CUresult queue_box(CUstream stream, size_t width, size_t height, size_t depth, enum direction direction, int wait)
{
    size_t area = 0;
    size_t bytes = 0;
    return __builtin_mul_overflow(width, height, &area) || __builtin_mul_overflow(area, depth, &bytes)
               ? CUDA_ERROR_INVALID_VALUE
               : queue(stream, bytes, direction, wait);
}

#define FILLS_ROWS(name, type)                                                                                         \
    SIM_SYNC_TWINS(name##_v2, _ptds, COST_COPY,                                                                         \
                   (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),                             \
                   ((void)to, (void)pitch, (void)value, queue_box(stream, width, height, sizeof value, ON_DEVICE, 0)))  \
    SIM_TWINS(name##Async, _ptsz, COST_COPY,                                                                            \
              (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream),                 \
              ((void)to, (void)pitch, (void)value, queue_box(stream, width, height, sizeof value, ON_DEVICE, 0)))

FILLS_ROWS(cuMemsetD2D8, unsigned char)
FILLS_ROWS(cuMemsetD2D16, unsigned short)
FILLS_ROWS(cuMemsetD2D32, unsigned int)

#define DIRECTION(copy)                                                 \
    between(side_on_device((copy)->srcMemoryType, (copy)->srcDevice), \
            side_on_device((copy)->dstMemoryType, (copy)->dstDevice))

static CUresult queue_2d(const CUDA_MEMCPY2D *copy, CUstream stream, int wait)
{
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE
                        : queue_box(stream, copy->WidthInBytes, copy->Height, 1, DIRECTION(copy), wait);
}

static CUresult queue_3d(const CUDA_MEMCPY3D *copy, CUstream stream, int wait)
{
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE
                        : queue_box(stream, copy->WidthInBytes, copy->Height, copy->Depth, DIRECTION(copy), wait);
}

static CUresult queue_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream, int wait)
{
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    enum direction direction = DIRECTION(copy);
    if (direction == ON_DEVICE && copy->srcContext != NULL && copy->dstContext != NULL) {
        direction = between_contexts(copy->dstContext, copy->srcContext);
    }
    return queue_box(stream, copy->WidthInBytes, copy->Height, copy->Depth, direction, wait);
}

SIM_SYNC_TWINS(cuMemcpy2D_v2, _ptds, COST_COPY, (const CUDA_MEMCPY2D *copy), queue_2d(copy, stream, 1))
SIM_SYNC_TWINS(cuMemcpy2DUnaligned_v2, _ptds, COST_COPY, (const CUDA_MEMCPY2D *copy), queue_2d(copy, stream, 1))
SIM_SYNC_TWINS(cuMemcpy3D_v2, _ptds, COST_COPY, (const CUDA_MEMCPY3D *copy), queue_3d(copy, stream, 1))
SIM_TWINS(cuMemcpy2DAsync_v2, _ptsz, COST_COPY, (const CUDA_MEMCPY2D *copy, CUstream stream), queue_2d(copy, stream, 0))
SIM_TWINS(cuMemcpy3DAsync_v2, _ptsz, COST_COPY, (const CUDA_MEMCPY3D *copy, CUstream stream), queue_3d(copy, stream, 0))
SIM_SYNC_TWINS(cuMemcpy3DPeer, _ptds, COST_COPY, (const CUDA_MEMCPY3D_PEER *copy), queue_3d_peer(copy, stream, 1))
SIM_TWINS(cuMemcpy3DPeerAsync, _ptsz, COST_COPY, (const CUDA_MEMCPY3D_PEER *copy, CUstream stream),
          queue_3d_peer(copy, stream, 0))

/* Batches take any stream but the legacy one. */
static CUresult batch_stream(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

#define BATCH                                                                                                         \
    CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *indices, \
        size_t attribute_count

static CUresult queue_batch(BATCH, CUstream stream)
{
    CUresult result = to == NULL || from == NULL || sizes == NULL || attributes == NULL || indices == NULL || count == 0 ||
                              attribute_count == 0
                          ? CUDA_ERROR_INVALID_VALUE
                          : batch_stream(stream);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = queue(stream, sizes[i], by_address(to[i], from[i]), 0);
    }
    return result;
}

static int operand_on_device(const CUmemcpy3DOperand *operand)
{
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || is_on_device(operand->op.ptr.ptr);
}

static CUresult queue_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, CUstream stream)
{
    CUresult result = list == NULL || count == 0 ? CUDA_ERROR_INVALID_VALUE : batch_stream(stream);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = queue_box(stream, list[i].extent.width, list[i].extent.height, list[i].extent.depth,
                           between(operand_on_device(&list[i].src), operand_on_device(&list[i].dst)), 0);
    }
    return result;
}

SIM_TWINS(cuMemcpyBatchAsync, _ptsz, COST_COPY, (BATCH, size_t *failed, CUstream stream),
          ((void)failed, queue_batch(to, from, sizes, count, attributes, indices, attribute_count, stream)))
SIM_TWINS(cuMemcpy3DBatchAsync, _ptsz, COST_COPY,
          (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream stream),
          ((void)failed, (void)flags, queue_boxes(count, list, stream)))

/* CUDA 13's forms. */
CUresult CUDAAPI cuMemcpyBatchAsync_v2(BATCH, CUstream stream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream);
SIM_TWINS(cuMemcpyBatchAsync_v2, _ptsz, COST_COPY, (BATCH, CUstream stream),
          queue_batch(to, from, sizes, count, attributes, indices, attribute_count, stream))
SIM_TWINS(cuMemcpy3DBatchAsync_v2, _ptsz, COST_COPY,
          (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream),
          ((void)flags, queue_boxes(count, list, stream)))
SIM_TWINS(cuMemPrefetchAsync, _ptsz, COST_COPY, (CUdeviceptr address, size_t bytes, CUdevice to, CUstream stream),
          ((void)address, queue(stream, bytes, to == CU_DEVICE_CPU ? FROM_DEVICE : TO_DEVICE, 0)))
SIM_TWINS(cuMemPrefetchAsync_v2, _ptsz, COST_COPY,
          (CUdeviceptr address, size_t bytes, CUmemLocation to, unsigned int flags, CUstream stream),
          ((void)address, (void)flags,
           queue(stream, bytes, to.type == CU_MEM_LOCATION_TYPE_DEVICE ? TO_DEVICE : FROM_DEVICE, 0)))
