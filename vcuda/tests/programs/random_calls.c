/* random_calls.c: legal calls in a random order, which is the same for the same seed.
 *
 *     random_calls SEED THREADS TIMES
 *
 * Each thread so many times draws what it does next, in contexts of its own, in green ones, and in the primary one, which all threads
 * share; in the end it gives back what is left. Prints a line for each call: the thread, which of the times it was, the call and its
 * answer. Two runs print the same. Then it prints "ended" and waits for a line, so that it can be seen what is still charged. Where
 * a thread takes longer than LONG_US over one of the times, the program prints "hangs" and ends.
 *
 * No line says what the order of two threads decides: a thread captures so that no other's calls end the capture, and no stream that
 * waits for the legacy one is captured.
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "program.h"

#define THREADS 16
#define THINGS 64
#define PLACES 4
#define MIB ((size_t)1 << 20)

enum kind {
    STREAM, /* that does not wait for the legacy one; `more`: it captures */
    BLOCKING,
    EVENT,   /* `more`: it was recorded */
    LINEAR,  /* `more`: bytes */
    MANAGED, /* the same */
    ARRAY,
    MIPMAP,
    ORDERED, /* memory in the order of a stream, `more`; 0: of none any more */
    POOL,
    PHYSICAL, /* `more`: bytes */
    MAPPED,   /* a range of addresses; `more`: its bytes */
    GRAPH,
    EXEC,
    MODULE, /* `more`: its function */
    LIBRARY,
};

/* What a thread has made, and in which of its places. */
struct thing {
    enum kind kind;
    int place;
    uint64_t handle, more;
};

/* A context that a thread uses: the first is the primary one. NULL: none is here now. */
struct place {
    CUcontext context;
    CUgreenCtx green; /* that it is of; NULL: of none */
};

struct actor {
    int number, times, time;
    uint64_t random;
    struct place places[PLACES];
    int here; /* whose context is current */
    struct thing things[THINGS];
    int count;
    char *log;
    size_t written, room;
    uint64_t began_us; /* when the present time began; atomic, for the one that looks whether it hangs */
};

static struct actor actors[THREADS];
static struct crew crew;
static int threads;
static pthread_mutex_t texts = PTHREAD_MUTEX_INITIALIZER; /* guards the text of kernels.h */

static uint64_t draw(struct actor *actor, uint64_t below)
{
    actor->random ^= actor->random << 13;
    actor->random ^= actor->random >> 7;
    actor->random ^= actor->random << 17;
    return actor->random % below;
}

__attribute__((format(printf, 2, 3))) static void say(struct actor *actor, const char *format, ...)
{
    va_list values;
    if (actor->room - actor->written < 256) {
        actor->room += 65536;
        actor->log = realloc(actor->log, actor->room);
    }
    actor->written += (size_t)sprintf(actor->log + actor->written, "%d %d ", actor->number, actor->time);
    va_start(values, format);
    actor->written += (size_t)vsnprintf(actor->log + actor->written, 128, format, values);
    va_end(values);
    actor->log[actor->written++] = '\n';
}

/* Makes a call and writes down what it answered. */
#define TRY(name, ...)                           \
    ({                                           \
        CUresult result = CU(name)(__VA_ARGS__); \
        say(actor, "%s %d", #name, (int)result); \
        result == CUDA_SUCCESS;                  \
    })

static void keep(struct actor *actor, enum kind kind, uint64_t handle, uint64_t more)
{
    actor->things[actor->count++] = (struct thing){kind, actor->here, handle, more};
}

/* One of this kind that is here; NULL: there is none. */
static struct thing *one(struct actor *actor, enum kind kind)
{
    int found = 0;
    struct thing *chosen = NULL;
    for (struct thing *thing = actor->things; thing < &actor->things[actor->count]; thing++)
        if (thing->kind == kind && thing->place == actor->here && draw(actor, (uint64_t)++found) == 0)
            chosen = thing;
    return chosen;
}

static void forget(struct actor *actor, struct thing *thing)
{
    *thing = actor->things[--actor->count];
}

/* A stream that does not capture; the legacy one now and then, where nothing here would be disturbed. */
static CUstream into(struct actor *actor)
{
    struct thing *found = one(actor, draw(actor, 3) != 0 ? STREAM : BLOCKING);
    if (found == NULL || (found->kind == STREAM && found->more != 0))
        return draw(actor, 4) == 0 ? CU_STREAM_PER_THREAD : NULL;
    return (CUstream)found->handle;
}

static size_t size(struct actor *actor)
{
    static const size_t sizes[] = {256, 100000, MIB, 3 * MIB, 16 * MIB};
    return sizes[draw(actor, sizeof sizes / sizeof *sizes)];
}

static size_t granules(struct actor *actor)
{
    return 2 * MIB * (1 + draw(actor, 4));
}

/* The green context's memory is the primary one's: what others may outlive is made there alone. */
static bool in_the_primary(const struct actor *actor)
{
    return actor->here == 0 || actor->places[actor->here].green != NULL;
}

static void makes_a_stream(struct actor *actor)
{
    CUstream made;
    bool blocking = draw(actor, 3) == 0;
    if (blocking ? TRY(cuStreamCreate, &made, CU_STREAM_DEFAULT)
                 : TRY(cuStreamCreateWithPriority, &made, CU_STREAM_NON_BLOCKING, 0))
        keep(actor, blocking ? BLOCKING : STREAM, (uint64_t)made, 0);
}

static void makes_an_event(struct actor *actor)
{
    CUevent made;
    if (TRY(cuEventCreate, &made, draw(actor, 2) == 0 ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING))
        keep(actor, EVENT, (uint64_t)made, 0);
}

static void allocates(struct actor *actor)
{
    CUdeviceptr made = 0;
    CUarray array;
    CUmipmappedArray mipmap;
    size_t bytes = size(actor), pitch;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 512, .Height = bytes >> 11, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    switch (draw(actor, 6)) {
    case 0:
        if (TRY(cuMemAllocPitch_v2, &made, &pitch, bytes >> 8, 256, 4))
            keep(actor, LINEAR, made, bytes);
        break;
    case 1:
        if (TRY(cuMemAllocManaged, &made, bytes, CU_MEM_ATTACH_GLOBAL))
            keep(actor, MANAGED, made, bytes);
        break;
    case 2:
        if (TRY(cuArray3DCreate_v2, &array, &shape))
            keep(actor, ARRAY, (uint64_t)array, 0);
        break;
    case 3:
        shape.Height |= 4;
        if (TRY(cuMipmappedArrayCreate, &mipmap, &shape, 2))
            keep(actor, MIPMAP, (uint64_t)mipmap, 0);
        break;
    default:
        if (TRY(cuMemAlloc_v2, &made, bytes))
            keep(actor, LINEAR, made, bytes);
    }
}

static void makes_a_pool(struct actor *actor)
{
    CUmemoryPool made;
    CUmemPoolProps how = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    cuuint64_t threshold = draw(actor, 2) * 64 * MIB;
    if (in_the_primary(actor) && TRY(cuMemPoolCreate, &made, &how)) {
        TRY(cuMemPoolSetAttribute, made, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
        keep(actor, POOL, (uint64_t)made, 0);
    }
}

static void allocates_in_order(struct actor *actor)
{
    CUdeviceptr made;
    CUstream stream = into(actor);
    struct thing *pool = one(actor, POOL);
    if (!in_the_primary(actor))
        return;
    if (pool != NULL && draw(actor, 2) == 0
            ? TRY(cuMemAllocFromPoolAsync, &made, size(actor), (CUmemoryPool)pool->handle, stream)
            : TRY(cuMemAllocAsync, &made, size(actor), stream))
        keep(actor, ORDERED, made, stream == NULL ? 1 : (uint64_t)stream);
}

static void makes_physical_memory(struct actor *actor)
{
    CUmemGenericAllocationHandle made;
    size_t bytes = granules(actor);
    CUmemAllocationProp how = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                               .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (TRY(cuMemCreate, &made, bytes, &how, 0))
        keep(actor, PHYSICAL, made, bytes);
}

/* One or two mappings of the same memory, side by side. */
static void maps(struct actor *actor)
{
    struct thing *physical = one(actor, PHYSICAL);
    CUdeviceptr range;
    if (physical == NULL)
        return;
    size_t bytes = physical->more, times = 1 + draw(actor, 2);
    if (!TRY(cuMemAddressReserve, &range, times * bytes, 0, 0, 0))
        return;
    for (size_t i = 0; i < times; i++)
        TRY(cuMemMap, range + i * bytes, bytes, 0, physical->handle, 0);
    keep(actor, MAPPED, range, times * bytes);
}

static void shares_physical_memory(struct actor *actor)
{
    struct thing *physical = one(actor, PHYSICAL);
    CUmemGenericAllocationHandle again;
    int descriptor = -1;
    if (physical == NULL ||
        !TRY(cuMemExportToShareableHandle, &descriptor, physical->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
        return;
    if (TRY(cuMemImportFromShareableHandle, &again, (void *)(intptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        keep(actor, PHYSICAL, again, physical->more);
    close(descriptor);
}

static void retains_what_is_mapped(struct actor *actor)
{
    struct thing *mapped = one(actor, MAPPED);
    CUmemGenericAllocationHandle handle;
    if (mapped != NULL && TRY(cuMemRetainAllocationHandle, &handle, (void *)mapped->handle))
        TRY(cuMemRelease, handle);
}

static void loads(struct actor *actor)
{
    static const char *const names[] = {"spin_us_1", "spin_us_20", "spin_us_300_w25", "spin_ms_2", "holds_3000000"};
    const char *name = names[draw(actor, sizeof names / sizeof *names)];
    CUmodule module = NULL;
    CUlibrary library_made = NULL;
    CUfunction function = NULL;
    CUkernel in_library;
    bool as_library = draw(actor, 4) == 0;
    pthread_mutex_lock(&texts);
    bool loaded = as_library ? TRY(cuLibraryLoadData, &library_made, kernel_module(name), NULL, NULL, 0, NULL, NULL, 0)
                             : TRY(cuModuleLoadData, &module, kernel_module(name));
    pthread_mutex_unlock(&texts);
    if (!loaded)
        return;
    if (as_library)
        TRY(cuLibraryGetKernel, &in_library, library_made, name);
    else
        TRY(cuModuleGetFunction, &function, module, name);
    keep(actor, as_library ? LIBRARY : MODULE, as_library ? (uint64_t)library_made : (uint64_t)module, (uint64_t)function);
}

static void launches_into(struct actor *actor, CUstream stream)
{
    struct thing *module = one(actor, MODULE);
    if (module == NULL)
        return;
    CUfunction function = (CUfunction)module->more;
    CUlaunchConfig how = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    for (uint64_t left = 1 + draw(actor, 8); left != 0; left--)
        if (draw(actor, 4) == 0)
            TRY(cuLaunchKernelEx, &how, function, NULL, NULL);
        else
            TRY(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void launches(struct actor *actor)
{
    launches_into(actor, into(actor));
}

static void fills(struct actor *actor)
{
    struct thing *memory = one(actor, LINEAR);
    if (memory != NULL && draw(actor, 2) == 0)
        TRY(cuMemsetD8Async, memory->handle, 1, memory->more, into(actor));
    else if (memory != NULL)
        TRY(cuMemcpyDtoDAsync_v2, memory->handle, memory->handle + memory->more / 2, memory->more / 2, into(actor));
}

static void CUDA_CB host_function(void *calls)
{
    __atomic_add_fetch((int *)calls, 1, __ATOMIC_RELEASE);
}

static void CUDA_CB callback(CUstream stream, CUresult result, void *calls)
{
    (void)stream;
    (void)result;
    host_function(calls);
}

static int host_calls;

static void calls_the_host(struct actor *actor)
{
    if (draw(actor, 2) == 0)
        TRY(cuLaunchHostFunc, into(actor), host_function, &host_calls);
    else
        TRY(cuStreamAddCallback, into(actor), callback, &host_calls, 0);
}

static void records(struct actor *actor)
{
    struct thing *found = one(actor, EVENT);
    if (found != NULL)
        found->more = TRY(cuEventRecord, (CUevent)found->handle, into(actor));
}

static void waits_for_an_event(struct actor *actor)
{
    struct thing *found = one(actor, EVENT);
    if (found == NULL)
        return;
    if (draw(actor, 2) == 0)
        TRY(cuStreamWaitEvent, into(actor), (CUevent)found->handle, 0);
    else if (TRY(cuEventSynchronize, (CUevent)found->handle))
        TRY(cuEventQuery, (CUevent)found->handle);
}

static void synchronises(struct actor *actor)
{
    CUstream stream = into(actor);
    if (draw(actor, 3) == 0)
        TRY(cuCtxSynchronize);
    else
        TRY(cuStreamSynchronize, stream);
}

static void asks(struct actor *actor)
{
    CUcontext current = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    size_t left = 0, total = 0;
    TRY(cuCtxGetCurrent, &current);
    say(actor, "is the one: %d", current == actor->places[actor->here].context);
    TRY(cuThreadExchangeStreamCaptureMode, &mode);
    TRY(cuThreadExchangeStreamCaptureMode, &(CUstreamCaptureMode){mode});
    say(actor, "its mode: %d", (int)mode);
    TRY(cuMemGetInfo_v2, &left, &total);
    say(actor, "of it is free: %d of %zu", left <= total, total);
}

/* A kernel, or the stream, waits for a word of the host's. Until the word is written, only calls that wait for nothing. */
static void lets_a_stream_wait_for_the_host(struct actor *actor)
{
    uint32_t *word;
    CUstream stream = into(actor);
    if (!TRY(cuMemAllocHost_v2, (void **)&word, sizeof *word))
        return;
    *word = 0;
    if (TRY(cuStreamWaitValue32_v2, stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ))
        for (uint64_t left = draw(actor, 4); left != 0; left--)
            (draw(actor, 2) == 0 ? launches : records)(actor);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    TRY(cuStreamSynchronize, stream);
    TRY(cuMemFreeHost, word);
}

/* In a stream that captures, and in one that joins it. */
static void captures_some(struct actor *actor, CUstream first, CUstream second)
{
    CUevent fork, join;
    CUdeviceptr memory;
    launches_into(actor, first);
    if (in_the_primary(actor) && draw(actor, 2) == 0 && TRY(cuMemAllocAsync, &memory, size(actor), first))
        TRY(cuMemFreeAsync, memory, first);
    if (second == NULL || !TRY(cuEventCreate, &fork, CU_EVENT_DISABLE_TIMING) ||
        !TRY(cuEventCreate, &join, CU_EVENT_DISABLE_TIMING))
        return;
    TRY(cuEventRecord, fork, first);
    TRY(cuStreamWaitEvent, second, fork, 0);
    launches_into(actor, second);
    TRY(cuEventRecord, join, second);
    TRY(cuStreamWaitEvent, first, join, 0);
    TRY(cuEventDestroy_v2, fork);
    TRY(cuEventDestroy_v2, join);
}

static void captures(struct actor *actor)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_GLOBAL};
    CUstreamCaptureMode mode = modes[draw(actor, threads == 1 ? 3 : 2)];
    CUstreamCaptureStatus status;
    struct thing *first = one(actor, STREAM), *second = one(actor, STREAM);
    CUgraph made = NULL;
    if (first == NULL || !TRY(cuStreamBeginCapture_v2, (CUstream)first->handle, mode))
        return;
    CUstream stream = (CUstream)first->handle;
    first->more = second->more = 1; /* nothing else is put into them */
    captures_some(actor, stream, second != first ? (CUstream)second->handle : NULL);
    for (uint64_t left = draw(actor, 3); left != 0; left--)
        (mode == CU_STREAM_CAPTURE_MODE_RELAXED && draw(actor, 2) == 0 ? allocates : launches)(actor);
    TRY(cuStreamIsCapturing, stream, &status);
    say(actor, "captures: %d", (int)status);
    if (TRY(cuStreamEndCapture, stream, &made))
        keep(actor, GRAPH, (uint64_t)made, 0);
    for (struct thing *thing = actor->things; thing < &actor->things[actor->count]; thing++)
        thing->more = thing->kind == STREAM ? 0 : thing->more;
}

static void builds_a_graph(struct actor *actor)
{
    CUgraph graph, child;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = size(actor)};
    struct thing *inside = one(actor, GRAPH);
    if (!in_the_primary(actor) || !TRY(cuGraphCreate, &graph, 0))
        return;
    TRY(cuGraphAddEmptyNode, &node, graph, NULL, 0);
    if (draw(actor, 2) == 0 && TRY(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &memory))
        TRY(cuGraphAddMemFreeNode, &node, graph, &node, 1, memory.dptr);
    else if (inside == NULL && TRY(cuGraphCreate, &child, 0)) {
        TRY(cuGraphAddEmptyNode, &node, child, NULL, 0);
        TRY(cuGraphAddChildGraphNode, &node, graph, NULL, 0, child);
        TRY(cuGraphDestroy, child); /* the node has a copy */
    }
    keep(actor, GRAPH, (uint64_t)graph, 0);
}

static void instantiates(struct actor *actor)
{
    struct thing *graph = one(actor, GRAPH);
    CUgraphExec made;
    size_t nodes = 0;
    if (graph == NULL)
        return;
    TRY(cuGraphGetNodes, (CUgraph)graph->handle, NULL, &nodes);
    say(actor, "nodes: %zu", nodes);
    if (TRY(cuGraphInstantiateWithFlags, &made, (CUgraph)graph->handle, 0))
        keep(actor, EXEC, (uint64_t)made, 0);
}

static void launches_a_graph(struct actor *actor)
{
    struct thing *exec = one(actor, EXEC);
    CUstream stream = into(actor);
    if (exec != NULL && draw(actor, 4) == 0)
        TRY(cuGraphUpload, (CUgraphExec)exec->handle, stream);
    if (exec != NULL)
        TRY(cuGraphLaunch, (CUgraphExec)exec->handle, stream);
    if (exec != NULL && draw(actor, 8) == 0 && TRY(cuStreamSynchronize, stream) && in_the_primary(actor))
        TRY(cuDeviceGraphMemTrim, 0);
}

/* Streams and events may end while their work goes on; memory is freed once it is done. */
static void ends(struct actor *actor, struct thing *thing)
{
    uint64_t handle = thing->handle, more = thing->more;
    enum kind kind = thing->kind;
    forget(actor, thing);
    switch (kind) {
    case STREAM:
    case BLOCKING:
        TRY(cuStreamDestroy_v2, (CUstream)handle);
        for (struct thing *each = actor->things; each < &actor->things[actor->count]; each++)
            each->more = each->kind == ORDERED && each->more == handle ? 0 : each->more;
        break;
    case EVENT:
        TRY(cuEventDestroy_v2, (CUevent)handle);
        break;
    case LINEAR:
    case MANAGED:
        TRY(cuMemFree_v2, handle);
        break;
    case ARRAY:
        TRY(cuArrayDestroy, (CUarray)handle);
        break;
    case MIPMAP:
        TRY(cuMipmappedArrayDestroy, (CUmipmappedArray)handle);
        break;
    case ORDERED:
        if (more == 0)
            TRY(cuMemFree_v2, handle);
        else
            TRY(cuMemFreeAsync, handle, more == 1 ? NULL : (CUstream)more);
        break;
    case POOL:
        TRY(cuMemPoolDestroy, (CUmemoryPool)handle);
        break;
    case PHYSICAL:
        TRY(cuMemRelease, handle);
        break;
    case MAPPED:
        TRY(cuMemUnmap, handle, more);
        TRY(cuMemAddressFree, handle, more);
        break;
    case GRAPH:
        TRY(cuGraphDestroy, (CUgraph)handle);
        break;
    case EXEC:
        TRY(cuGraphExecDestroy, (CUgraphExec)handle);
        break;
    case MODULE:
        TRY(cuModuleUnload, (CUmodule)handle);
        break;
    case LIBRARY:
        TRY(cuLibraryUnload, (CUlibrary)handle);
    }
}

static void ends_something(struct actor *actor)
{
    if (actor->count == 0)
        return;
    struct thing *thing = &actor->things[draw(actor, (uint64_t)actor->count)];
    bool used = thing->kind == MODULE && (one(actor, GRAPH) != NULL || one(actor, EXEC) != NULL);
    if (thing->place != actor->here || used)
        return;
    if (thing->kind != STREAM && thing->kind != BLOCKING && thing->kind != EVENT && thing->kind != ORDERED)
        TRY(cuCtxSynchronize);
    ends(actor, thing);
}

/* All that is here; what a context takes along may also be left to it. */
static void ends_all(struct actor *actor, bool leaves)
{
    TRY(cuCtxSynchronize);
    for (int i = actor->count - 1; i >= 0; i--) {
        struct thing *thing = &actor->things[i];
        bool outlives = thing->kind == PHYSICAL || thing->kind == MAPPED || thing->kind == LIBRARY || thing->kind == GRAPH;
        if (thing->place != actor->here)
            continue;
        if (leaves && !outlives)
            forget(actor, thing);
        else
            ends(actor, thing);
    }
    TRY(cuCtxSynchronize);
}

static void goes_to(struct actor *actor, int place)
{
    CUcontext before;
    TRY(cuCtxPopCurrent_v2, &before);
    actor->here = place;
    TRY(cuCtxPushCurrent_v2, actor->places[place].context);
}

/* What most calls want. */
static void begins_here(struct actor *actor)
{
    makes_a_stream(actor);
    makes_a_stream(actor);
    makes_an_event(actor);
    loads(actor);
}

static void makes_a_context(struct actor *actor)
{
    int free = 1;
    CUcontext before;
    while (free < PLACES && actor->places[free].context != NULL)
        free++;
    if (free == PLACES)
        return;
    struct place *place = &actor->places[free];
    if (draw(actor, 2) == 0) {
        if (TRY(cuCtxCreate_v2, &place->context, 0, 0))
            TRY(cuCtxPopCurrent_v2, &before);
    } else if (TRY(cuGreenCtxCreate, &place->green, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM)) {
        TRY(cuCtxFromGreenCtx, &place->context, place->green);
    }
    if (place->context != NULL) {
        goes_to(actor, free);
        begins_here(actor);
    }
}

static void ends_this_context(struct actor *actor)
{
    struct place *place = &actor->places[actor->here];
    CUcontext before;
    if (actor->here == 0)
        return;
    ends_all(actor, place->green == NULL && draw(actor, 2) == 0);
    if (place->green != NULL) {
        TRY(cuCtxPopCurrent_v2, &before);
        TRY(cuGreenCtxDestroy, place->green);
    } else {
        if (draw(actor, 2) == 0)
            launches(actor); /* what is in flight goes with it */
        TRY(cuCtxDestroy_v2, place->context);
    }
    *place = (struct place){NULL, NULL};
    actor->here = 0;
    TRY(cuCtxPushCurrent_v2, actor->places[0].context);
}

/* Alone, since all threads have it; nothing of it is left by then but green contexts' and what outlives a context. */
static void resets_the_primary(struct actor *actor)
{
    CUcontext context;
    for (int place = 1; place < PLACES; place++)
        if (actor->places[place].green != NULL)
            return;
    if (threads != 1 || actor->here != 0)
        return;
    ends_all(actor, false);
    TRY(cuDevicePrimaryCtxReset_v2, 0);
    TRY(cuDevicePrimaryCtxRetain, &context, 0);
    TRY(cuDevicePrimaryCtxRelease_v2, 0);
    begins_here(actor);
}

static void sets_a_limit(struct actor *actor)
{
    size_t set = 0;
    if (actor->here == 0 || actor->places[actor->here].green != NULL)
        return;
    TRY(cuCtxSetLimit, CU_LIMIT_MALLOC_HEAP_SIZE, granules(actor));
    TRY(cuCtxGetLimit, &set, CU_LIMIT_MALLOC_HEAP_SIZE);
    say(actor, "limit %zu", set);
}

static void trims_a_pool(struct actor *actor)
{
    struct thing *pool = one(actor, POOL);
    if (pool != NULL && TRY(cuCtxSynchronize))
        TRY(cuMemPoolTrimTo, (CUmemoryPool)pool->handle, 0);
}

static void changes_places(struct actor *actor)
{
    int place = (int)draw(actor, PLACES);
    if (actor->places[place].context != NULL)
        goes_to(actor, place);
}

static void retains_the_primary(struct actor *actor)
{
    CUcontext context;
    if (TRY(cuDevicePrimaryCtxRetain, &context, 0))
        TRY(cuDevicePrimaryCtxRelease_v2, 0);
    say(actor, "is the one: %d", context == actor->places[0].context);
}

/* A child that ends at once, or becomes another program. */
static void forks(struct actor *actor)
{
    static char *const arguments[] = {"true", NULL};
    pid_t child;
    int status = -1;
    if (draw(actor, 2) == 0) {
        child = fork();
        if (child == 0) {
            execvp(arguments[0], arguments);
            _exit(1);
        }
    } else if (posix_spawnp(&child, arguments[0], NULL, NULL, arguments, environ) != 0) {
        return;
    }
    waitpid(child, &status, 0);
    say(actor, "child %d", status);
}

static void *launches_and_ends(void *given)
{
    struct actor *actor = given;
    TRY(cuCtxPushCurrent_v2, actor->places[0].context);
    int here = actor->here;
    actor->here = 0;
    launches(actor);
    records(actor);
    actor->here = here;
    return NULL;
}

static void begins_a_thread(struct actor *actor)
{
    pthread_t thread;
    if (actor->places[actor->here].green == NULL && pthread_create(&thread, NULL, launches_and_ends, actor) == 0)
        pthread_join(thread, NULL);
}

static const struct {
    void (*act)(struct actor *);
    unsigned int weight;
} acts[] = {
    {makes_a_stream, 6},
    {makes_an_event, 4},
    {allocates, 10},
    {makes_a_pool, 2},
    {allocates_in_order, 12},
    {makes_physical_memory, 4},
    {maps, 4},
    {shares_physical_memory, 2},
    {retains_what_is_mapped, 2},
    {loads, 5},
    {launches, 25},
    {fills, 6},
    {calls_the_host, 3},
    {records, 8},
    {waits_for_an_event, 6},
    {synchronises, 5},
    {asks, 3},
    {lets_a_stream_wait_for_the_host, 2},
    {captures, 5},
    {builds_a_graph, 3},
    {instantiates, 4},
    {launches_a_graph, 8},
    {ends_something, 50},
    {makes_a_context, 2},
    {ends_this_context, 1},
    {changes_places, 4},
    {retains_the_primary, 2},
    {forks, 1},
    {begins_a_thread, 2},
    {resets_the_primary, 1},
    {sets_a_limit, 2},
    {trims_a_pool, 2},
};

static void acts_once(struct actor *actor)
{
    unsigned int all = 0;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        all += acts[i].weight;
    unsigned int drawn = (unsigned int)draw(actor, all);
    size_t which = 0;
    for (; drawn >= acts[which].weight; which++)
        drawn -= acts[which].weight;
    if (actor->count < THINGS - 8 || acts[which].act == ends_something)
        acts[which].act(actor);
}

static void *plays(void *given)
{
    struct actor *actor = given;
    TRY(cuCtxPushCurrent_v2, actor->places[0].context);
    begins_here(actor);
    for (; actor->time < actor->times; actor->time++) {
        __atomic_store_n(&actor->began_us, now_us(), __ATOMIC_RELEASE);
        acts_once(actor);
    }
    for (int place = PLACES - 1; place >= 0; place--)
        if (actor->places[place].context != NULL) {
            goes_to(actor, place);
            if (place != 0)
                ends_this_context(actor);
        }
    ends_all(actor, false);
    __atomic_store_n(&actor->began_us, 0, __ATOMIC_RELEASE);
    __atomic_add_fetch(&crew.ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void print_all(void)
{
    for (int i = 0; i < threads; i++)
        fwrite(actors[i].log, 1, actors[i].written, stdout);
}

static bool hangs(void)
{
    uint64_t now = now_us();
    for (int i = 0; i < threads; i++) {
        uint64_t began = __atomic_load_n(&actors[i].began_us, __ATOMIC_ACQUIRE);
        if (began != 0 && began + LONG_US < now)
            return true;
    }
    return false;
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    CUcontext context = begin();
    threads = atoi(arguments[2]);
    for (int i = 0; i < threads; i++) {
        actors[i] = (struct actor){.number = i, .times = atoi(arguments[3]), .places = {{context, NULL}}};
        actors[i].random = strtoull(arguments[1], NULL, 10) * 64 + (uint64_t)i + 1;
        for (int j = 0; j < 8; j++)
            draw(&actors[i], 1);
        pthread_create(&crew.threads[crew.count++], NULL, plays, &actors[i]);
    }
    while (__atomic_load_n(&crew.ended, __ATOMIC_ACQUIRE) != crew.count && !hangs())
        pause_us(100);
    if (hangs()) {
        print_all();
        printf("hangs\n");
        fflush(stdout);
        _exit(1);
    }
    crew_wait(&crew);
    print_all();
    printf("trim %d release %d\n", (int)CU(cuDeviceGraphMemTrim)(0), (int)CU(cuDevicePrimaryCtxRelease_v2)(0));
    printf("ended\n");
    fflush(stdout);
    return getchar() == EOF;
}
