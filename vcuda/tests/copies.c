/* copies.c: one copy or fill, and what becomes of it.
 *
 *     copies CALL BYTES HOW
 *         HOW  device    from memory of the first GPU to other memory of it, or of the second one where the call is for two
 *              host      from the host, or where the call cannot, not at all
 *              null      NULL for what describes the copy
 *              empty     a copy of a box without depth, or of no bytes
 *              overflow  a box of more bytes than 64 bits can count
 *              captured  as device, into a stream that captures: RESULT is then of the end of the capture, or an error before
 *     prints "RESULT MICROSECONDS", of the call alone, once the GPU is through.
 */
#include "programs/program.h"

#define MIB (1u << 20)

struct copy {
    void *call;
    size_t bytes;
    CUdeviceptr to, from;
    CUarray array, other; /* of BYTES each, where the call is for arrays */
    CUcontext contexts[2];
    CUstream stream;
    bool is_null;
    size_t rows[3]; /* width, height and depth of a box */
};

typedef CUresult form(const struct copy *c);

/* The call as a function of the same parameters as NAME. */
#define AS(name) ((__typeof__(name) *)c->call)

static CUresult fill_8(const struct copy *c)
{
    return AS(cuMemsetD8_v2)(c->to, 1, c->bytes);
}

static CUresult fill_8_later(const struct copy *c)
{
    return AS(cuMemsetD8Async)(c->to, 1, c->bytes, c->stream);
}

static CUresult fill_16(const struct copy *c)
{
    return AS(cuMemsetD16_v2)(c->to, 1, c->bytes / 2);
}

static CUresult fill_16_later(const struct copy *c)
{
    return AS(cuMemsetD16Async)(c->to, 1, c->bytes / 2, c->stream);
}

static CUresult fill_32(const struct copy *c)
{
    return AS(cuMemsetD32_v2)(c->to, 1, c->bytes / 4);
}

static CUresult fill_32_later(const struct copy *c)
{
    return AS(cuMemsetD32Async)(c->to, 1, c->bytes / 4, c->stream);
}

static CUresult plain(const struct copy *c)
{
    return AS(cuMemcpyDtoD_v2)(c->to, c->from, c->bytes);
}

static CUresult plain_later(const struct copy *c)
{
    return AS(cuMemcpyDtoDAsync_v2)(c->to, c->from, c->bytes, c->stream);
}

static CUresult to_array(const struct copy *c)
{
    return AS(cuMemcpyDtoA_v2)(c->array, 0, c->from, c->bytes);
}

static CUresult from_array(const struct copy *c)
{
    return AS(cuMemcpyAtoD_v2)(c->to, c->array, 0, c->bytes);
}

static CUresult arrays(const struct copy *c)
{
    return AS(cuMemcpyAtoA_v2)(c->array, 0, c->other, 0, c->bytes);
}

static CUresult peer(const struct copy *c)
{
    return AS(cuMemcpyPeer)(c->to, c->contexts[1], c->from, c->contexts[0], c->bytes);
}

static CUresult peer_later(const struct copy *c)
{
    return AS(cuMemcpyPeerAsync)(c->to, c->contexts[1], c->from, c->contexts[0], c->bytes, c->stream);
}

/* What the fields of a box's descriptions have in common; the host's memory stands behind the address of either side. */
#define BOX(c)                                                                                                              \
    .srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = (c)->from, .srcPitch = (c)->rows[0], .dstDevice = (c)->to,         \
    .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = (c)->rows[0], .WidthInBytes = (c)->rows[0], .Height = (c)->rows[1]

static CUresult flat(const struct copy *c)
{
    CUDA_MEMCPY2D box = {BOX(c)};
    return AS(cuMemcpy2D_v2)(c->is_null ? NULL : &box);
}

static CUresult flat_later(const struct copy *c)
{
    CUDA_MEMCPY2D box = {BOX(c)};
    return AS(cuMemcpy2DAsync_v2)(c->is_null ? NULL : &box, c->stream);
}

static CUresult deep(const struct copy *c)
{
    CUDA_MEMCPY3D box = {BOX(c), .srcHeight = c->rows[1], .dstHeight = c->rows[1], .Depth = c->rows[2]};
    return AS(cuMemcpy3D_v2)(c->is_null ? NULL : &box);
}

static CUresult deep_later(const struct copy *c)
{
    CUDA_MEMCPY3D box = {BOX(c), .srcHeight = c->rows[1], .dstHeight = c->rows[1], .Depth = c->rows[2]};
    return AS(cuMemcpy3DAsync_v2)(c->is_null ? NULL : &box, c->stream);
}

#define DEEP_PEER(c)                                                                                                    \
    {BOX(c), .srcHeight = (c)->rows[1], .dstHeight = (c)->rows[1], .Depth = (c)->rows[2], .srcContext = (c)->contexts[0], \
     .dstContext = (c)->contexts[1]}

static CUresult deep_peer(const struct copy *c)
{
    CUDA_MEMCPY3D_PEER box = DEEP_PEER(c);
    return AS(cuMemcpy3DPeer)(c->is_null ? NULL : &box);
}

static CUresult deep_peer_later(const struct copy *c)
{
    CUDA_MEMCPY3D_PEER box = DEEP_PEER(c);
    return AS(cuMemcpy3DPeerAsync)(c->is_null ? NULL : &box, c->stream);
}

/* A batch in parts, of which the first is a copy of the host's. */
#define PARTS 201

struct batch {
    CUdeviceptr to[PARTS], from[PARTS];
    size_t sizes[PARTS], first;
    CUmemcpyAttributes attributes;
};

static struct batch batch_of(const struct copy *c)
{
    static char host[4096];
    struct batch batch = {.attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    for (int i = 0; i < PARTS; i++) {
        batch.sizes[i] = i == 0 ? sizeof host : c->bytes / (PARTS - 1);
        batch.to[i] = c->to + (i == 0 ? 0 : (size_t)(i - 1) * batch.sizes[i]);
        batch.from[i] = i == 0 ? (CUdeviceptr)(uintptr_t)host : c->from + (size_t)(i - 1) * batch.sizes[i];
    }
    return batch;
}

#define BATCH c->is_null ? NULL : b.to, b.from, b.sizes, PARTS, &b.attributes, &b.first, 1

static CUresult batch_12(const struct copy *c)
{
    struct batch b = batch_of(c);
    size_t failed;
    return AS(cuMemcpyBatchAsync)(BATCH, &failed, c->stream);
}

static CUresult batch_13(const struct copy *c)
{
    struct batch b = batch_of(c);
    return AS(cuMemcpyBatchAsync_v2)(BATCH, c->stream);
}

static CUmemcpy3DOperand operand(CUdeviceptr at)
{
    return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = at};
}

static CUDA_MEMCPY3D_BATCH_OP box_of(const struct copy *c)
{
    return (CUDA_MEMCPY3D_BATCH_OP){.src = operand(c->from),
                                    .dst = operand(c->to),
                                    .extent = {c->rows[0], c->rows[1], c->rows[2]},
                                    .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
}

static CUresult boxes_12(const struct copy *c)
{
    CUDA_MEMCPY3D_BATCH_OP box = box_of(c);
    size_t failed;
    return AS(cuMemcpy3DBatchAsync)(1, c->is_null ? NULL : &box, &failed, 0, c->stream);
}

static CUresult boxes_13(const struct copy *c)
{
    CUDA_MEMCPY3D_BATCH_OP box = box_of(c);
    return AS(cuMemcpy3DBatchAsync_v2)(1, c->is_null ? NULL : &box, 0, c->stream);
}

/* A fill of rows of a mebibyte or less. */
#define FILLS_2D(bits)                                                                                                  \
    static CUresult fill_2d_##bits(const struct copy *c)                                                                \
    {                                                                                                                   \
        return AS(cuMemsetD2D##bits##_v2)(c->to, c->rows[0], 1, c->rows[0] / (bits / 8), c->rows[1]);                   \
    }                                                                                                                   \
    static CUresult fill_2d_##bits##_later(const struct copy *c)                                                        \
    {                                                                                                                   \
        return AS(cuMemsetD2D##bits##Async)(c->to, c->rows[0], 1, c->rows[0] / (bits / 8), c->rows[1], c->stream);      \
    }

FILLS_2D(8)
FILLS_2D(16)
FILLS_2D(32)

static const struct {
    const char *name; /* without that of a twin */
    form *form;
} forms[] = {
    {"cuMemsetD8_v2", fill_8},
    {"cuMemsetD8Async", fill_8_later},
    {"cuMemsetD16_v2", fill_16},
    {"cuMemsetD16Async", fill_16_later},
    {"cuMemsetD32_v2", fill_32},
    {"cuMemsetD32Async", fill_32_later},
    {"cuMemsetD2D8_v2", fill_2d_8},
    {"cuMemsetD2D8Async", fill_2d_8_later},
    {"cuMemsetD2D16_v2", fill_2d_16},
    {"cuMemsetD2D16Async", fill_2d_16_later},
    {"cuMemsetD2D32_v2", fill_2d_32},
    {"cuMemsetD2D32Async", fill_2d_32_later},
    {"cuMemcpy", plain},
    {"cuMemcpyDtoD_v2", plain},
    {"cuMemcpyAsync", plain_later},
    {"cuMemcpyDtoDAsync_v2", plain_later},
    {"cuMemcpyDtoA_v2", to_array},
    {"cuMemcpyAtoD_v2", from_array},
    {"cuMemcpyAtoA_v2", arrays},
    {"cuMemcpyPeer", peer},
    {"cuMemcpyPeerAsync", peer_later},
    {"cuMemcpy2D_v2", flat},
    {"cuMemcpy2DUnaligned_v2", flat},
    {"cuMemcpy2DAsync_v2", flat_later},
    {"cuMemcpy3D_v2", deep},
    {"cuMemcpy3DAsync_v2", deep_later},
    {"cuMemcpy3DPeer", deep_peer},
    {"cuMemcpy3DPeerAsync", deep_peer_later},
    {"cuMemcpyBatchAsync", batch_12},
    {"cuMemcpyBatchAsync_v2", batch_13},
    {"cuMemcpy3DBatchAsync", boxes_12},
    {"cuMemcpy3DBatchAsync_v2", boxes_13},
};

static form *form_of(const char *name)
{
    size_t length = strlen(name);
    if (length > 5 && strncmp(name + length - 5, "_pt", 3) == 0)
        length -= 5;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (strlen(forms[i].name) == length && strncmp(forms[i].name, name, length) == 0)
            return forms[i].form;
    exit(2);
}

static CUcontext second_gpu(void)
{
    CUcontext context, popped;
    must(CU(cuDevicePrimaryCtxRetain)(&context, 1));
    must(CU(cuCtxPushCurrent_v2)(context));
    must(CU(cuCtxPopCurrent_v2)(&popped));
    return context;
}

static CUdeviceptr memory_in(CUcontext context, size_t bytes)
{
    CUcontext popped;
    CUdeviceptr made;
    must(CU(cuCtxPushCurrent_v2)(context));
    must(CU(cuMemAlloc_v2)(&made, bytes));
    must(CU(cuCtxPopCurrent_v2)(&popped));
    return made;
}

static CUarray array_of(size_t bytes)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = bytes < MIB ? 1 : MIB / 16, .Height = bytes / MIB + 1, .NumChannels = 4, .Format = CU_AD_FORMAT_FLOAT};
    CUarray made;
    must(CU(cuArrayCreate_v2)(&made, &shape));
    return made;
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    const char *name = arguments[1], *how = arguments[3];
    form *call = form_of(name);
    CUcontext context = begin();
    bool two = strstr(name, "Peer") != NULL, captured = strcmp(how, "captured") == 0;
    struct copy c = {.call = function_named(name),
                     .bytes = strcmp(how, "empty") == 0 ? 0 : strtoull(arguments[2], NULL, 10),
                     .contexts = {context, two ? second_gpu() : context},
                     .stream = stream(CU_STREAM_NON_BLOCKING),
                     .is_null = strcmp(how, "null") == 0};
    size_t room = c.bytes > MIB ? c.bytes : MIB;
    c.from = memory_in(context, room);
    c.to = memory_in(c.contexts[1], room);
    c.array = array_of(room);
    c.other = array_of(room);
    if (strcmp(how, "host") == 0)
        c.from = (CUdeviceptr)(uintptr_t)malloc(c.bytes);
    size_t width = c.bytes < MIB ? c.bytes : MIB;
    memcpy(c.rows, (size_t[]){width, width != 0 ? c.bytes / width : 1, 1}, sizeof c.rows);
    if (strcmp(how, "overflow") == 0)
        memcpy(c.rows, (size_t[]){SIZE_MAX / 2, 4, 4}, sizeof c.rows);
    if (captured)
        must(CU(cuStreamBeginCapture_v2)(c.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    uint64_t before = now_us();
    CUresult result = call(&c);
    uint64_t took = now_us() - before;
    if (captured) {
        CUgraph graph;
        CUresult ended = CU(cuStreamEndCapture)(c.stream, &graph);
        result = result != CUDA_SUCCESS ? result : ended;
    }
    must(CU(cuCtxSynchronize)());
    printf("%d %lu\n", (int)result, (unsigned long)took);
    return 0;
}
