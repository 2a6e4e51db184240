/* unusual.c: programs that are correct and do what few do.
 *
 *     unusual last              a thread launches in the last pass over its keys' destructors; then its stream ends
 *     unusual stack             a thread launches, allocates, frees and captures; prints how many bytes of its stack were written
 *                               in place of the time
 *     unusual capture COUNT     a context ends while a stream of it captures; then so many launches in another context
 *     unusual fault COUNT       a kernel fails; then so many launches, allocations, frees and questions, which all fail
 *     unusual conditional COUNT  so many launches of a graph with a loop whose body was captured, in it a choice of two bodies, each
 *                               of which allocates nothing; prints how long a launch takes at most
 *     unusual contextless       a thread that has no current context allocates in the order of a stream
 *     unusual contexts ROUNDS   in each a kernel of 16 ms in one context, and 8 ms later one of 1 ms in another, which ends first
 *     unusual beside ROUNDS   a kernel in one context waits for the host, while in another there is one of 0.1 ms every 10 ms
 *     unusual gap               unmaps a range of which the beginning alone is mapped; prints the answer in place of the time
 *     unusual starved           no memory is left to the process when it makes its first context; prints what that call said
 *     unusual unread            none is left when it looks the driver's functions up; then there is, and it allocates 2 GiB
 */
#include <sys/resource.h>

#include "program.h"

static CUcontext context;
static CUfunction work;
static CUstream works;
static pthread_key_t key;
static struct crew crew;

static void *thread_ended(void *argument)
{
    __atomic_add_fetch(&crew.ended, 1, __ATOMIC_RELEASE);
    return argument;
}

/* A destructor that sets its key again is called again, PTHREAD_DESTRUCTOR_ITERATIONS times in all. */
static void launches_at_last(void *passes)
{
    if ((uintptr_t)passes < 4)
        pthread_setspecific(key, (char *)passes + 1);
    else
        launch(work, works, NULL);
}

static void *with_a_key(void *unused)
{
    must(CU(cuCtxPushCurrent_v2)(context));
    launch(work, works, NULL);
    pthread_setspecific(key, (char *)1);
    return thread_ended(unused);
}

/* Its stack is larger than what the C library keeps of stacks of threads that have ended: what lay there is gone with it. */
static void last(void)
{
    pthread_attr_t large;
    must(pthread_attr_init(&large) != 0);
    must(pthread_attr_setstacksize(&large, 256u << 20) != 0);
    launch(work, works, NULL); /* the shim's own key comes before the program's */
    must(pthread_key_create(&key, launches_at_last) != 0);
    crew.count = 1;
    must(pthread_create(&crew.threads[0], &large, with_a_key, NULL) != 0);
    crew_wait(&crew);
    must(CU(cuStreamDestroy_v2)(works));
}

static void *on_its_own_stack(void *unused)
{
    CUdeviceptr memory;
    CUgraph graph;
    size_t free_bytes, total;
    must(CU(cuCtxPushCurrent_v2)(context));
    for (int i = 0; i < 200; i++) {
        launch(work, works, NULL);
        pause_us(500); /* the node writes a new page meanwhile */
    }
    must(CU(cuMemAlloc_v2)(&memory, 4 << 20));
    must(CU(cuMemFree_v2)(memory));
    must(CU(cuMemAllocAsync)(&memory, 4 << 20, works));
    must(CU(cuMemFreeAsync)(memory, works));
    must(CU(cuMemGetInfo_v2)(&free_bytes, &total));
    must(CU(cuStreamBeginCapture_v2)(works, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(work, works, NULL);
    must(CU(cuStreamEndCapture)(works, &graph));
    must(CU(cuGraphDestroy)(graph));
    must(CU(cuStreamDestroy_v2)(works));
    return thread_ended(unused);
}

#define STACK (256u << 10)
#define UNTOUCHED 0xA5

/* How far down its stack the thread wrote. */
static uint64_t stack(void)
{
    static _Alignas(65536) unsigned char bytes[STACK];
    pthread_attr_t attributes;
    size_t left = 0;
    memset(bytes, UNTOUCHED, sizeof bytes);
    must(pthread_attr_init(&attributes) != 0);
    must(pthread_attr_setstack(&attributes, bytes, sizeof bytes) != 0);
    crew.count = 1;
    must(pthread_create(&crew.threads[0], &attributes, on_its_own_stack, NULL) != 0);
    crew_wait(&crew);
    while (left < sizeof bytes && bytes[left] == UNTOUCHED)
        left++;
    return sizeof bytes - left;
}

static void capture(int count)
{
    CUcontext other;
    must(CU(cuCtxCreate_v2)(&other, 0, 0));
    must(CU(cuStreamBeginCapture_v2)(stream(CU_STREAM_NON_BLOCKING), CU_STREAM_CAPTURE_MODE_RELAXED));
    must(CU(cuCtxDestroy_v2)(other));
    must(CU(cuCtxSetCurrent)(context));
    for (int i = 0; i < count; i++)
        launch(work, works, NULL);
    wait_for(works, LONG_US);
}

/* The error stays: each later call returns it. */
static void fault(int count)
{
    CUdeviceptr memory, more;
    size_t free_bytes, total;
    must(CU(cuMemAlloc_v2)(&memory, 4 << 20));
    CUfunction longer = kernel("spin_ms_5");
    for (int i = 0; i < 3; i++)
        launch(longer, works, NULL);
    CUresult sticky = CU(cuLaunchKernel)(kernel("fault"), 1, 1, 1, 1, 1, 1, 0, works, NULL, NULL);
    if (sticky == CUDA_SUCCESS)
        sticky = CU(cuStreamSynchronize)(works);
    bool stays = sticky == CUDA_ERROR_ILLEGAL_ADDRESS;
    for (int i = 0; i < count && stays; i++)
        stays = CU(cuLaunchKernel)(work, 1, 1, 1, 1, 1, 1, 0, works, NULL, NULL) == sticky &&
                CU(cuMemAlloc_v2)(&more, 4 << 20) == sticky && CU(cuMemAllocAsync)(&more, 4 << 20, works) == sticky &&
                CU(cuMemFree_v2)(memory) == sticky && CU(cuMemGetInfo_v2)(&free_bytes, &total) == sticky &&
                CU(cuStreamQuery)(works) == sticky && CU(cuCtxSynchronize)() == sticky;
    must(stays ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
}

/* A node by whose condition a body of it runs: its bodies are the driver's, and are filled like any graph. */
static CUgraph *conditional(CUgraph graph, CUgraphConditionalNodeType type, unsigned int value, unsigned int bodies)
{
    CUgraphNode node;
    CUgraphNodeParams asked = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    must(CU(cuGraphConditionalHandleCreate)(&asked.conditional.handle, graph, context, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
    asked.conditional.type = type;
    asked.conditional.size = bodies;
    asked.conditional.ctx = context;
    must(CU(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0, &asked));
    CUgraphNodeType made;
    must(CU(cuGraphNodeGetType)(node, &made));
    must(made == CU_GRAPH_NODE_TYPE_CONDITIONAL ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    return asked.conditional.phGraph_out;
}

static void capture_into(CUgraph body, CUfunction function, int launches)
{
    CUgraph same;
    must(CU(cuStreamBeginCaptureToGraph)(works, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < launches; i++)
        launch(function, works, NULL);
    must(CU(cuStreamEndCapture)(works, &same));
    must(same == body ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
}

/* Five rounds of three kernels of 0.1 ms, and after each one of 0.1 ms: 2 ms for each launch. */
static uint64_t conditionals(int count)
{
    CUgraph graph;
    CUgraphExec executable;
    CUfunction tenth = kernel("spin_us_100");
    uint64_t most = 0;
    must(CU(cuGraphCreate)(&graph, 0));
    CUgraph body = conditional(graph, CU_GRAPH_COND_TYPE_WHILE, 5, 1)[0];
    capture_into(body, tenth, 3);
    CUgraph *either = conditional(body, CU_GRAPH_COND_TYPE_IF, 0, 2);
    capture_into(either[0], tenth, 50);
    capture_into(either[1], tenth, 1);
    must(CU(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    for (int i = 0; i < count; i++) {
        uint64_t from = now_us();
        must(CU(cuGraphLaunch)(executable, works));
        wait_for(works, LONG_US);
        most = now_us() - from > most ? now_us() - from : most;
    }
    must(CU(cuGraphExecDestroy)(executable));
    must(CU(cuGraphDestroy)(graph));
    return most;
}

/* Takes what the C library still has, so that no allocation succeeds; the one that was made first is the largest. */
static void *take_all_memory(struct rlimit *before)
{
    void *all = NULL;
    must(getrlimit(RLIMIT_AS, before) != 0);
    must(setrlimit(RLIMIT_AS, &(struct rlimit){0, before->rlim_max}) != 0);
    for (size_t bytes = 64u << 20; bytes >= sizeof all; bytes /= 2)
        for (void **more; (more = malloc(bytes)) != NULL; all = more)
            *more = all;
    return all;
}

static void give_all_back(void *all, const struct rlimit *before)
{
    must(setrlimit(RLIMIT_AS, before) != 0);
    for (void *next; all != NULL; all = next) {
        next = *(void **)all;
        free(all);
    }
}

static void starved(void)
{
    struct rlimit before;
    CUdeviceptr memory;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    must(CU(cuInit)(0));
    CU(cuDevicePrimaryCtxRetain);
    void *all = take_all_memory(&before);
    CUresult result = CU(cuDevicePrimaryCtxRetain)(&context, 0);
    give_all_back(all, &before);
    must(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    must(CU(cuCtxPushCurrent_v2)(context));
    must(CU(cuMemAlloc_v2)(&memory, 4 << 20));
    done(result, 0);
}

static void unread(void)
{
    struct rlimit before;
    CUdeviceptr memory;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), "nvmlDeviceGetMemoryInfo"); /* the shim reads what it is to do */
    void *all = take_all_memory(&before);
    __typeof__(cuMemAlloc_v2) *allocate = dlsym(library, "cuMemAlloc_v2");
    give_all_back(all, &before);
    context = begin();
    done((allocate != NULL ? allocate : CU(cuMemAlloc_v2))(&memory, (size_t)2 << 30), 0);
}

/* Memory in the order of a stream, by a thread that has no current context: the stream's context is meant (cuda.h,
 * cuMemAllocAsync). */
static void *allocates(void *argument)
{
    CUdeviceptr memory, other;
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    (void)argument;
    must(CU(cuMemPoolCreate)(&pool, &properties));
    must(CU(cuMemAllocFromPoolAsync)(&memory, 4 << 20, pool, works));
    must(CU(cuMemAllocAsync)(&other, 4 << 20, works));
    must(CU(cuMemFreeAsync)(memory, works));
    must(CU(cuMemFreeAsync)(other, works));
    if (CU(cuMemAllocFromPoolAsync)(&memory, 4 << 20, pool, NULL) != CUDA_ERROR_INVALID_CONTEXT)
        done(CUDA_ERROR_UNKNOWN, 0);
    return NULL;
}

static void contextless(void)
{
    pthread_t thread;
    must(pthread_create(&thread, NULL, allocates, NULL) != 0);
    must(pthread_join(thread, NULL) != 0);
}

static void contexts(int rounds)
{
    CUcontext other;
    must(CU(cuCtxCreate_v2)(&other, 0, 0));
    CUstream beside = stream(CU_STREAM_NON_BLOCKING);
    CUfunction shorter = kernel("spin_ms_1");
    must(CU(cuCtxSetCurrent)(context));
    CUfunction longer = kernel("spin_ms_16");
    for (int i = 0; i < rounds; i++) {
        must(CU(cuCtxSetCurrent)(context));
        launch(longer, works, NULL);
        pause_us(8000);
        must(CU(cuCtxSetCurrent)(other));
        launch(shorter, beside, NULL);
        wait_for(beside, LONG_US);
        wait_for(works, LONG_US);
    }
}

static void beside(int rounds)
{
    CUcontext other;
    uint32_t *go = word();
    must(CU(cuCtxCreate_v2)(&other, 0, 0));
    CUstream waits = stream(CU_STREAM_NON_BLOCKING);
    CUfunction later = kernel("spin_us_10");
    must(CU(cuStreamWaitValue32_v2)(waits, (CUdeviceptr)go, 1, CU_STREAM_WAIT_VALUE_EQ));
    launch(later, waits, NULL);
    must(CU(cuCtxSetCurrent)(context));
    CUfunction short_one = kernel("spin_us_100");
    for (int i = 0; i < rounds; i++) {
        launch(short_one, works, NULL);
        wait_for(works, LONG_US);
        pause_us(10000);
    }
    __atomic_store_n(go, 1, __ATOMIC_RELEASE);
    wait_for(waits, LONG_US);
}

/* A range of which the beginning alone is mapped: what the driver answers to its end, as "microseconds". */
static uint64_t gap(void)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    must(CU(cuMemAddressReserve)(&range, 8 << 20, 0, 0, 0));
    must(CU(cuMemCreate)(&handle, 2 << 20, &properties, 0));
    must(CU(cuMemMap)(range, 2 << 20, 0, handle, 0));
    must(CU(cuMemRelease)(handle));
    return (uint64_t)CU(cuMemUnmap)(range, 8 << 20);
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    if (strcmp(arguments[1], "starved") == 0)
        starved();
    if (strcmp(arguments[1], "unread") == 0)
        unread();
    context = begin();
    work = kernel("spin_us_10");
    works = stream(CU_STREAM_NON_BLOCKING);
    uint64_t from = now_us();
    if (strcmp(arguments[1], "last") == 0)
        last();
    else if (strcmp(arguments[1], "contextless") == 0)
        contextless();
    else if (strcmp(arguments[1], "gap") == 0)
        done(CUDA_SUCCESS, gap());
    else if (strcmp(arguments[1], "stack") == 0)
        done(CUDA_SUCCESS, stack());
    else if (count == 3 && strcmp(arguments[1], "fault") == 0)
        fault(atoi(arguments[2]));
    else if (count == 3 && strcmp(arguments[1], "conditional") == 0)
        done(CUDA_SUCCESS, conditionals(atoi(arguments[2])));
    else if (count == 3 && strcmp(arguments[1], "beside") == 0)
        beside(atoi(arguments[2]));
    else if (count == 3 && strcmp(arguments[1], "contexts") == 0)
        contexts(atoi(arguments[2]));
    else if (count == 3 && strcmp(arguments[1], "capture") == 0)
        capture(atoi(arguments[2]));
    else
        return 2;
    done(CUDA_SUCCESS, now_us() - from);
}
