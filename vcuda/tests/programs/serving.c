/* serving.c: a model server. A cache of keys and values grows in segments of 2 MiB blocks that are mapped into one range of
 * addresses, sized by what is free; one graph is captured for each size of batch, as torch.cuda.graph does it, and each token
 * replays one of them and waits for it.      serving TOKENS
 */
#include "program.h"

#define BATCHES 4
#define SEGMENT ((size_t)32 << 20)
#define SEGMENTS 8

static CUdeviceptr range;
static CUmemGenericAllocationHandle segments[SEGMENTS];

static void grow(int i)
{
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = what.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    must(CU(cuMemCreate)(&segments[i], SEGMENT, &what, 0));
    must(CU(cuMemMap)(range + (size_t)i * SEGMENT, SEGMENT, 0, segments[i], 0));
    must(CU(cuMemSetAccess)(range + (size_t)i * SEGMENT, SEGMENT, &access, 1));
}

static void shrink(int i)
{
    must(CU(cuMemUnmap)(range + (size_t)i * SEGMENT, SEGMENT));
    must(CU(cuMemRelease)(segments[i]));
}

/* Each step is a few short kernels. */
static CUgraphExec captured(CUfunction step, int batch)
{
    CUstream side = stream(CU_STREAM_NON_BLOCKING);
    CUgraph graph;
    CUgraphExec executable;
    must(CU(cuStreamBeginCapture_v2)(side, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i <= batch; i++)
        launch(step, side, NULL);
    must(CU(cuStreamEndCapture)(side, &graph));
    must(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    must(CU(cuGraphDestroy)(graph));
    must(CU(cuStreamDestroy_v2)(side));
    return executable;
}

int main(int count, char **arguments)
{
    int tokens = count > 1 ? atoi(arguments[1]) : 100;
    size_t before, after, total;
    CUgraphExec steps[BATCHES];
    begin();
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction step = kernel("spin_us_200");
    must(CU(cuMemGetInfo_v2)(&before, &total));
    must(CU(cuMemAddressReserve)(&range, SEGMENTS * SEGMENT, 0, 0, 0));
    for (int i = 0; i < SEGMENTS; i++)
        grow(i);
    must(CU(cuMemGetInfo_v2)(&after, &total));
    if (before - after != SEGMENTS * SEGMENT || before > total)
        done(CUDA_ERROR_INVALID_VALUE, 0);
    for (int i = 0; i < BATCHES; i++)
        steps[i] = captured(step, i);
    uint64_t from = now_us();
    for (int token = 0; token < tokens; token++) {
        must(CU(cuGraphLaunch)(steps[token % BATCHES], works));
        wait_for(works, LONG_US);
        if (token % 32 == 31) {
            shrink(token / 32 % SEGMENTS);
            grow(token / 32 % SEGMENTS);
        }
    }
    uint64_t took = now_us() - from;
    must(CU(cuMemGetInfo_v2)(&before, &total));
    for (int i = 0; i < SEGMENTS; i++)
        shrink(i);
    must(CU(cuMemGetInfo_v2)(&after, &total));
    done(after - before == SEGMENTS * SEGMENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, took);
}
