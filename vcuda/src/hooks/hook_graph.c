/* hook_graph.c: graphs are launched in their turn, and what they allocate is charged before it is mapped.
 *
 * The shim looks for allocations when a graph is instantiated. A graph then has all its nodes, added by hand, by capture or
 * in a graph inside another: so none of the many functions that add nodes needs a hook.
 */
#include "hooks/hook.h"
#include "memory/graph_memory.h"
#include "time/pacer.h"

/* One call under way, for the actions below. */
struct call {
    CUgraphExec *made;
    CUgraphExec executable;
    CUgraph graph;
    CUstream stream;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *parameters;
    CUgraphNode *failed;
    char *log;
    size_t log_size;
    __typeof__(cuGraphLaunch) *on_stream;
    __typeof__(cuGraphInstantiateWithParams) *with_parameters;
    __typeof__(cuGraphInstantiate) *with_log;
};

static CUresult on_stream(void *argument)
{
    struct call *call = argument;
    return call->on_stream(call->executable, call->stream);
}

static CUresult with_flags(void *argument)
{
    struct call *call = argument;
    return REAL(cuGraphInstantiateWithFlags)(call->made, call->graph, call->flags);
}

static CUresult with_parameters(void *argument)
{
    struct call *call = argument;
    return call->with_parameters(call->made, call->graph, call->parameters);
}

static CUresult with_log(void *argument)
{
    struct call *call = argument;
    return call->with_log(call->made, call->graph, call->failed, call->log, call->log_size);
}

/* What a launch into a stream that captures maps is nothing: it becomes a node. */
static bool captures(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return REAL(cuStreamIsCapturing) != NULL && REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static CUresult bring(struct call *call, CUstream asked)
{
    if (likely(__atomic_load_n(&process()->graphs.executables, __ATOMIC_ACQUIRE) == 0) || captures(asked))
        return on_stream(call);
    return graph_memory_bring(call->executable, on_stream, call);
}

#define GRAPH_LAUNCHES(name, asked)                                                          \
    EXPORT CUresult name(CUgraphExec graph, CUstream stream)                                 \
    {                                                                                        \
        PASS_UNLESS_ACTIVE(name, graph, stream);                                             \
        bool measured = pacer_admit(asked);                                                  \
        struct call call = {.executable = graph, .stream = stream, .on_stream = REAL(name)}; \
        CUresult result = bring(&call, asked);                                               \
        if (measured)                                                                        \
            pacer_launched(asked);                                                           \
        return result;                                                                       \
    }

GRAPH_LAUNCHES(cuGraphLaunch, stream)
GRAPH_LAUNCHES(cuGraphLaunch_ptsz, stream == NULL ? CU_STREAM_PER_THREAD : stream)

#define UPLOADS(name)                                                                        \
    EXPORT CUresult name(CUgraphExec graph, CUstream stream)                                 \
    {                                                                                        \
        PASS_UNLESS_ACTIVE(name, graph, stream);                                             \
        struct call call = {.executable = graph, .stream = stream, .on_stream = REAL(name)}; \
        return graph_memory_bring(graph, on_stream, &call);                                  \
    }

UPLOADS(cuGraphUpload)
UPLOADS(cuGraphUpload_ptsz)

/* An executable takes memory of its own, of which the driver says nothing. */
static CUresult instantiate(CUgraph graph, CUgraphExec *made, bool uploads, graph_action *action, struct call *call)
{
    CUcontext context;
    int index;
    CUresult result = graph_memory_instantiate(graph, made, uploads, action, call);
    if (result == CUDA_SUCCESS && current_device(&context, &index))
        want_sample(index);
    return result;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags)
{
    PASS_UNLESS_ACTIVE(cuGraphInstantiateWithFlags, made, graph, flags);
    struct call call = {.made = made, .graph = graph, .flags = flags};
    return instantiate(graph, made, (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0, with_flags, &call);
}

#define WITH_PARAMETERS(name)                                                                                       \
    EXPORT CUresult name(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)               \
    {                                                                                                               \
        PASS_UNLESS_ACTIVE(name, made, graph, parameters);                                                          \
        struct call call = {.made = made, .graph = graph, .parameters = parameters, .with_parameters = REAL(name)}; \
        bool uploads = parameters != NULL && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;         \
        return instantiate(graph, made, uploads, with_parameters, &call);                                           \
    }

WITH_PARAMETERS(cuGraphInstantiateWithParams)
WITH_PARAMETERS(cuGraphInstantiateWithParams_ptsz)

/* The forms of CUDA 10 and 11, with five arguments. */
#define WITH_LOG(name)                                                                                             \
    EXPORT CUresult name(CUgraphExec *made, CUgraph graph, CUgraphNode *failed, char *log, size_t size)            \
    {                                                                                                              \
        PASS_UNLESS_ACTIVE(name, made, graph, failed, log, size);                                                  \
        struct call call = {                                                                                       \
            .made = made, .graph = graph, .failed = failed, .log = log, .log_size = size, .with_log = REAL(name)}; \
        return instantiate(graph, made, false, with_log, &call);                                                   \
    }

WITH_LOG(cuGraphInstantiate)
WITH_LOG(cuGraphInstantiate_v2)

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    struct allocation row;
    PASS_UNLESS_ACTIVE(cuGraphExecDestroy, graph);
    bool ours = graph_memory_destroying(graph, &row);
    CUresult result = REAL(cuGraphExecDestroy)(graph);
    if (ours)
        graph_memory_destroyed(result, &row);
    return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuDeviceGraphMemTrim, device);
    return graph_memory_trim(device);
}
