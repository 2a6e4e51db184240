/* handles_overtaken.c: while one thread ends what has a handle, and before the shim knows that it has ended, the driver gives the
 * handle to another thread.
 *
 *     handles_overtaken KIND    prints the bytes charged, or whether the second one is known, and the bytes charged at its end
 *
 * Or, with the kind limit: while one sets a limit, another sets it, too, and is the last.
 *
 * The driver is played. KIND is physical, multicast, graph, green or limit.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hooks/hook.h"
#include "memory/charge.h"
#include "played_driver.h"
#include "state.h"

#define FIRST_BYTES ((uint64_t)64 << 20)
#define SECOND_BYTES ((uint64_t)32 << 20)
#define HANDLE 0x70000
#define PRIMARY ((CUcontext)(uintptr_t)0x1000)

static CUcontext current;
static int overtaken;             /* the first has ended */
static void *(*overtakes)(void *); /* what the second thread does */
static uint64_t mapped, held_before_it_was_mapped;

/* The driver ends something, and another thread is there before it comes back. */
static CUresult ends(void)
{
    pthread_t other;
    if (!overtaken) {
        overtaken = 1;
        pthread_create(&other, NULL, overtakes, NULL);
        pthread_join(other, NULL);
    }
    return CUDA_SUCCESS;
}

static unsigned long long held(void)
{
    return ledger_held(ledger, 0);
}

static CUresult creates(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *how,
                        unsigned long long flags)
{
    (void)bytes, (void)how, (void)flags;
    *handle = HANDLE;
    return CUDA_SUCCESS;
}

static CUresult makes_object(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *how)
{
    (void)how;
    *handle = HANDLE;
    return CUDA_SUCCESS;
}

static CUresult releases(CUmemGenericAllocationHandle handle)
{
    (void)handle;
    return ends();
}

static void create(uint64_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    cuMemCreate(&handle, bytes, &how, 0);
}

static void *creates_second(void *unused)
{
    create(SECOND_BYTES);
    return unused;
}

static void *makes_second(void *unused)
{
    CUmemGenericAllocationHandle handle;
    CUmulticastObjectProp how = {.numDevices = 1, .size = SECOND_BYTES};
    cuMulticastCreate(&handle, &how);
    return unused;
}

static void physical(void)
{
    create(FIRST_BYTES);
    cuMemRelease(HANDLE);
    printf("%llu ", held());
    cuMemRelease(HANDLE);
}

static CUresult lists(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    (void)graph;
    *count = 1;
    if (nodes != NULL)
        *nodes = (CUgraphNode)(uintptr_t)1;
    return CUDA_SUCCESS;
}

static CUresult is_allocation(CUgraphNode node, CUgraphNodeType *type)
{
    (void)node;
    *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}

static CUresult allocates(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *how)
{
    (void)node;
    *how = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE, .dptr = 1ull << 40, .bytesize = FIRST_BYTES};
    return CUDA_SUCCESS;
}

static CUresult says_how_much(CUdevice device, CUgraphMem_attribute which, void *value)
{
    (void)device, (void)which;
    *(cuuint64_t *)value = mapped;
    return CUDA_SUCCESS;
}

static CUresult instantiates(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    *made = (CUgraphExec)(uintptr_t)HANDLE;
    return CUDA_SUCCESS;
}

static CUresult maps(CUgraphExec graph, CUstream stream)
{
    (void)graph, (void)stream;
    held_before_it_was_mapped = held();
    mapped = FIRST_BYTES;
    return CUDA_SUCCESS;
}

static CUresult ends_graph(CUgraphExec graph)
{
    (void)graph;
    return ends();
}

static void *instantiates_one(void *unused)
{
    CUgraphExec made;
    cuGraphInstantiateWithFlags(&made, (CUgraph)(uintptr_t)1, 0);
    return unused;
}

static void graph(void)
{
    driver.cuGraphGetNodes = lists;
    driver.cuGraphNodeGetType = is_allocation;
    driver.cuGraphMemAllocNodeGetParams = allocates;
    driver.cuDeviceGetGraphMemAttribute = says_how_much;
    driver.cuGraphInstantiateWithFlags = instantiates;
    driver.cuGraphUpload = maps;
    driver.cuGraphExecDestroy = ends_graph;
    instantiates_one(NULL);
    cuGraphExecDestroy((CUgraphExec)(uintptr_t)HANDLE);
    cuGraphUpload((CUgraphExec)(uintptr_t)HANDLE, NULL);
    printf("%llu ", (unsigned long long)held_before_it_was_mapped);
    mapped = 0;
    cuGraphExecDestroy((CUgraphExec)(uintptr_t)HANDLE);
}

static int uses; /* of the primary context */

static CUresult retains(CUcontext *context, CUdevice device)
{
    (void)device;
    uses++;
    *context = PRIMARY;
    return CUDA_SUCCESS;
}

static CUresult releases_primary(CUdevice device)
{
    (void)device;
    uses--;
    return CUDA_SUCCESS;
}

static CUresult says_whether_alive(CUdevice device, unsigned int *flags, int *is_alive)
{
    (void)device, (void)flags;
    *is_alive = uses != 0;
    return CUDA_SUCCESS;
}

static CUresult makes_green(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    (void)resources, (void)device, (void)flags;
    *green = (CUgreenCtx)(uintptr_t)HANDLE;
    return CUDA_SUCCESS;
}

static CUresult context_of(CUcontext *context, CUgreenCtx green)
{
    *context = (CUcontext)(uintptr_t)green;
    return CUDA_SUCCESS;
}

static CUresult ends_green(CUgreenCtx green)
{
    (void)green;
    return ends();
}

static void *makes_one(void *unused)
{
    CUgreenCtx made;
    cuGreenCtxCreate(&made, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    return unused;
}

static void green(void)
{
    driver.cuDevicePrimaryCtxRetain = retains;
    driver.cuDevicePrimaryCtxRelease_v2 = releases_primary;
    driver.cuDevicePrimaryCtxGetState = says_whether_alive;
    driver.cuGreenCtxCreate = makes_green;
    driver.cuCtxFromGreenCtx = context_of;
    driver.cuGreenCtxDestroy = ends_green;
    makes_one(NULL);
    cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)HANDLE);
    printf("%d ", device_context_for_all((CUcontext)(uintptr_t)HANDLE) == PRIMARY);
    cuGreenCtxDestroy((CUgreenCtx)(uintptr_t)HANDLE);
}

static CUresult sets(CUlimit which, size_t bytes)
{
    (void)which, (void)bytes;
    return ends();
}

static void *sets_second(void *unused)
{
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SECOND_BYTES);
    return unused;
}

static void limit(void)
{
    current = PRIMARY;
    driver.cuCtxSetLimit = sets;
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, FIRST_BYTES);
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, SECOND_BYTES);
    printf("%llu ", held());
    cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0);
}

static CUresult says_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult pushes(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

int main(int count, char **arguments)
{
    if (!active() || count != 2)
        return 2;
    const char *kind = arguments[1];
    cuMemRelease(0); /* the real driver is loaded, and refuses: what is played comes in its place */
    play_device();
    driver.cuCtxGetCurrent = says_current;
    driver.cuCtxPushCurrent_v2 = pushes;
    driver.cuCtxPopCurrent_v2 = says_current;
    driver.cuMemCreate = creates;
    driver.cuMulticastCreate = makes_object;
    driver.cuMemRelease = releases;
    overtakes = strcmp(kind, "physical") == 0    ? creates_second
                : strcmp(kind, "multicast") == 0 ? makes_second
                : strcmp(kind, "graph") == 0     ? instantiates_one
                : strcmp(kind, "limit") == 0     ? sets_second
                                                 : makes_one;
    if (overtakes == instantiates_one)
        graph();
    else if (overtakes == makes_one)
        green();
    else if (overtakes == sets_second)
        limit();
    else
        physical();
    printf("%llu\n", held());
    fflush(stdout);
    _exit(0); /* the driver that is played says nothing to the shim's own end */
}
