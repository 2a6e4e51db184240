/* hook_copy.c: fills, and copies from memory of a device to memory of a device, use the memory's whole bandwidth. Large ones count
 * as launches; small ones are over before a question about them would be. */
#include "capture_mode.h"
#include "hooks/hook.h"
#include "time/pacer.h"

#define LARGE_BYTES (8u << 20)

#define COUNTS(name, stream, is_large, parameters, ...)  \
    EXPORT CUresult name parameters                      \
    {                                                    \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);           \
        if (!(is_large) || likely(!pacer_admit(stream))) \
            return REAL(name)(__VA_ARGS__);              \
        CUresult result = REAL(name)(__VA_ARGS__);       \
        pacer_launched(stream);                          \
        return result;                                   \
    }

/* A call that names no stream, and its twin for per-thread default streams; the same of one that does. */
#define NOW(name, is_large, parameters, ...)              \
    COUNTS(name, NULL, is_large, parameters, __VA_ARGS__) \
    COUNTS(name##_ptds, CU_STREAM_PER_THREAD, is_large, parameters, __VA_ARGS__)
#define LATER(name, is_large, parameters, ...)              \
    COUNTS(name, stream, is_large, parameters, __VA_ARGS__) \
    COUNTS(name##_ptsz, per_thread(stream), is_large, parameters, __VA_ARGS__)

/* Saturates: what does not fit into 64 bits the driver refuses. */
static uint64_t times(uint64_t one, uint64_t other)
{
    uint64_t product;
    return __builtin_mul_overflow(one, other, &product) ? UINT64_MAX : product;
}

static bool is_large(uint64_t width, uint64_t height, uint64_t depth)
{
    return times(times(width, height), depth) >= LARGE_BYTES;
}

#define FILLS(bits, type)                                                                                                    \
    NOW(cuMemsetD##bits##_v2, is_large(count, bits / 8, 1), (CUdeviceptr to, type value, size_t count), to, value, count)    \
    LATER(cuMemsetD##bits##Async, is_large(count, bits / 8, 1), (CUdeviceptr to, type value, size_t count, CUstream stream), \
          to, value, count, stream)                                                                                          \
    NOW(cuMemsetD2D##bits##_v2, is_large(width, height, bits / 8),                                                           \
        (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), to, pitch, value, width, height)            \
    LATER(cuMemsetD2D##bits##Async, is_large(width, height, bits / 8),                                                       \
          (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), to, pitch, value, width, \
          height, stream)

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)

NOW(cuMemcpyDtoD_v2, is_large(bytes, 1, 1), (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
LATER(cuMemcpyDtoDAsync_v2, is_large(bytes, 1, 1), (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from,
      bytes, stream)

/* Arrays lie on a device. */
NOW(cuMemcpyDtoA_v2, is_large(bytes, 1, 1), (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), to, offset, from,
    bytes)
NOW(cuMemcpyAtoD_v2, is_large(bytes, 1, 1), (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), to, from, offset,
    bytes)
NOW(cuMemcpyAtoA_v2, is_large(bytes, 1, 1), (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes), to,
    to_offset, from, from_offset, bytes)

/* Between two devices: it is charged to the one whose stream it is in. */
NOW(cuMemcpyPeer, is_large(bytes, 1, 1),
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes), to, to_context, from,
    from_context, bytes)
LATER(cuMemcpyPeerAsync, is_large(bytes, 1, 1),
      (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream), to,
      to_context, from, from_context, bytes, stream)

/* Whether a device's memory is at the address; managed memory counts as such. The driver looks the address up, as it does for the
 * copy itself. One that it does not know is no error, and whether a capture forbids the question NVIDIA documents nowhere. */
static bool is_of_device(CUdeviceptr address)
{
    unsigned int type = 0;
    CUpointer_attribute asked = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *answer = &type;
    if (REAL(cuPointerGetAttributes) == NULL)
        return false;
    CUstreamCaptureMode before = capture_mode_relaxed();
    CUresult result = REAL(cuPointerGetAttributes)(1, &asked, &answer, address);
    capture_mode_exchange(before);
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

static bool between(CUdeviceptr to, CUdeviceptr from, uint64_t bytes)
{
    return is_large(bytes, 1, 1) && is_of_device(from) && is_of_device(to);
}

NOW(cuMemcpy, between(to, from, bytes), (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
LATER(cuMemcpyAsync, between(to, from, bytes), (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from,
      bytes, stream)
LATER(cuMemcpyWithAttributesAsync, between(to, from, bytes),
      (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemcpyAttributes *attributes, CUstream stream), to, from, bytes,
      attributes, stream)

/* Boxes of bytes; a side may leave it to its address where it is. */
static bool side_on_device(CUmemorytype type, CUdeviceptr address)
{
    return type == CU_MEMORYTYPE_UNIFIED ? is_of_device(address) : type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY;
}

#define BOX(copy, depth)                                                        \
    ((copy) != NULL && is_large((copy)->WidthInBytes, (copy)->Height, depth) && \
     side_on_device((copy)->srcMemoryType, (copy)->srcDevice) && side_on_device((copy)->dstMemoryType, (copy)->dstDevice))

NOW(cuMemcpy2D_v2, BOX(copy, 1), (const CUDA_MEMCPY2D *copy), copy)
NOW(cuMemcpy2DUnaligned_v2, BOX(copy, 1), (const CUDA_MEMCPY2D *copy), copy)
LATER(cuMemcpy2DAsync_v2, BOX(copy, 1), (const CUDA_MEMCPY2D *copy, CUstream stream), copy, stream)
NOW(cuMemcpy3D_v2, BOX(copy, copy->Depth), (const CUDA_MEMCPY3D *copy), copy)
LATER(cuMemcpy3DAsync_v2, BOX(copy, copy->Depth), (const CUDA_MEMCPY3D *copy, CUstream stream), copy, stream)
NOW(cuMemcpy3DPeer, BOX(copy, copy->Depth), (const CUDA_MEMCPY3D_PEER *copy), copy)
LATER(cuMemcpy3DPeerAsync, BOX(copy, copy->Depth), (const CUDA_MEMCPY3D_PEER *copy, CUstream stream), copy, stream)

/* What of a copy counts towards a large batch. */
static uint64_t part(uint64_t bytes)
{
    return bytes < LARGE_BYTES ? bytes : LARGE_BYTES;
}

/* A batch is one launch where its copies between devices are large together. The driver is asked about no more of them than
 * that takes, and about none after so many others: most batches go one way, and may have thousands from or to the host. */
#define ONE_WAY 64u

static bool asks_on(size_t asked, uint64_t found, uint64_t left)
{
    return found < LARGE_BYTES && found + left >= LARGE_BYTES && (found != 0 || asked < ONE_WAY);
}

static bool batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count)
{
    uint64_t left = 0, found = 0;
    if (to == NULL || from == NULL || sizes == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        left += part(sizes[i]);
    for (size_t i = 0; i < count && asks_on(i, found, left); i++) {
        left -= part(sizes[i]);
        found += is_of_device(from[i]) && is_of_device(to[i]) ? part(sizes[i]) : 0;
    }
    return found >= LARGE_BYTES;
}

#define BATCH CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *indices
#define BATCH_ARGUMENTS to, from, sizes, count, attributes, indices

LATER(cuMemcpyBatchAsync, batch(to, from, sizes, count), (BATCH, size_t of_attributes, size_t *failed, CUstream stream),
      BATCH_ARGUMENTS, of_attributes, failed, stream)
LATER(cuMemcpyBatchAsync_v2, batch(to, from, sizes, count), (BATCH, size_t of_attributes, CUstream stream), BATCH_ARGUMENTS,
      of_attributes, stream)

static bool operand_on_device(const CUmemcpy3DOperand *operand)
{
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY || is_of_device(operand->op.ptr.ptr);
}

/* The extent is in elements where an array takes part: each counts as a byte, the least that it has. */
static uint64_t part_of_box(const CUextent3D *extent)
{
    return part(times(times(extent->width, extent->height), extent->depth));
}

static bool boxes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count)
{
    uint64_t left = 0, found = 0;
    if (list == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        left += part_of_box(&list[i].extent);
    for (size_t i = 0; i < count && asks_on(i, found, left); i++) {
        left -= part_of_box(&list[i].extent);
        found += operand_on_device(&list[i].src) && operand_on_device(&list[i].dst) ? part_of_box(&list[i].extent) : 0;
    }
    return found >= LARGE_BYTES;
}

LATER(cuMemcpy3DBatchAsync, boxes(list, count),
      (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags, CUstream stream), count, list,
      failed, flags, stream)
LATER(cuMemcpy3DBatchAsync_v2, boxes(list, count),
      (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream), count, list, flags, stream)
LATER(cuMemcpy3DWithAttributesAsync, boxes(copy, 1), (CUDA_MEMCPY3D_BATCH_OP * copy, unsigned long long flags, CUstream stream),
      copy, flags, stream)
