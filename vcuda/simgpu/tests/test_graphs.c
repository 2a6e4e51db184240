/* Graphs, and what is forbidden while a stream is captured into one. */
#include "check.h"

#include <pthread.h>

static CUstream stream;

static CUgraph capture(const char *name, int launches)
{
    CUgraph graph = NULL;
    CUfunction function = kernel(name);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int i = 0; i < launches; i++) {
        launch(function, stream);
    }
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static void a_captured_stream_does_nothing_until_its_graph_is_launched(void)
{
    CUgraphExec exec = NULL;
    size_t nodes = 0;
    CUgraph graph = capture("spin_us_1000", 3);
    OK(cuStreamQuery(stream));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 3);
    OK(cuGraphInstantiate(&exec, graph, 0));
    double begin = seconds();
    OK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY || seconds() - begin >= 0.003);
    OK(cuStreamSynchronize(stream));
    CHECK(seconds() - begin >= 0.003);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void unsafe_calls_invalidate_a_global_capture(void)
{
    CUgraph graph = NULL;
    CUdeviceptr address = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(cuMemAlloc(&address, 1024) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && graph == NULL);
    OK(cuMemAlloc(&address, 1024));
    OK(cuMemFree(address));
}

static void a_relaxed_thread_may_call_what_it_likes(void)
{
    CUgraph graph = NULL;
    CUdeviceptr address = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuMemAlloc(&address, 1024));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuMemFree(address));
    OK(cuGraphDestroy(graph));
}

static void the_captured_stream_itself_allows_no_synchronisation(void)
{
    CUgraph graph = NULL;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void *query_an_event(void *event)
{
    static CUresult result;
    result = cuEventQuery(event);
    return &result;
}

static void another_threads_event_query_breaks_a_global_capture(void)
{
    CUgraph graph = NULL;
    CUevent event = NULL;
    CUresult *result = NULL;
    pthread_t thread;
    OK(cuEventCreate(&event, 0));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(pthread_create(&thread, NULL, query_an_event, event) == 0);
    CHECK(pthread_join(thread, (void **)&result) == 0);
    CHECK(*result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuEventDestroy(event));
}

static void the_legacy_stream_breaks_the_capture_of_a_blocking_stream(void)
{
    CUgraph graph = NULL;
    CUstream blocking = NULL;
    CUfunction function = kernel("spin_us_10");
    launch(function, NULL);
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK(cuStreamEndCapture(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamDestroy(blocking));
}

static void a_stream_that_waits_for_a_captured_event_is_captured_too(void)
{
    CUgraph graph = NULL;
    CUevent event = NULL;
    CUstream other = NULL;
    size_t nodes = 0;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    launch(kernel("spin_us_10"), other);
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    CHECK(nodes == 1);
    OK(cuStreamQuery(other));
    OK(cuGraphDestroy(graph));
}

static void an_event_of_a_capture_that_has_ended_is_waited_for_by_no_stream(void)
{
    CUgraph graph = NULL;
    CUevent event = NULL;
    CUstream other = NULL;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuEventRecord(event, stream));
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(cuStreamWaitEvent(other, event, 0) == CUDA_ERROR_CAPTURED_EVENT);
    CHECK(cuEventQuery(event) == CUDA_ERROR_CAPTURED_EVENT);
    OK(cuStreamQuery(other));
    OK(cuEventRecord(event, stream));
    OK(cuStreamWaitEvent(other, event, 0));
    OK(cuStreamSynchronize(other));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(other));
    OK(cuGraphDestroy(graph));
}

static size_t left(void)
{
    size_t bytes = 0, total = 0;
    OK(cuMemGetInfo(&bytes, &total));
    return bytes;
}

static void graph_memory_is_taken_at_upload_and_kept_until_trimmed(void)
{
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 10 << 20};
    size_t before = left();
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
    OK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(left() == before && alloc.dptr != 0);
    OK(cuGraphUpload(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    CHECK(before - left() == 10 << 20);
    OK(cuGraphExecDestroy(exec));
    CHECK(before - left() == 10 << 20);
    OK(cuDeviceGraphMemTrim(0));
    CHECK(left() == before);
    OK(cuGraphDestroy(graph));
}

static CUgraphExec uploaded(CUstream into)
{
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 10 << 20};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &alloc));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphUpload(exec, into));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void graph_memory_of_a_green_context_is_the_primary_ones(void)
{
    CUcontext primary = NULL, part = NULL, popped = NULL;
    CUgreenCtx green = NULL;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuGreenCtxCreate(&green, NULL, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&part, green));
    size_t before = left();
    OK(cuCtxPushCurrent(primary));
    CUgraphExec first = uploaded(NULL);
    OK(cuCtxPushCurrent(part));
    CUgraphExec second = uploaded(NULL);
    CHECK(before - left() == 20 << 20);
    OK(cuGraphExecDestroy(second));
    OK(cuCtxPopCurrent(&popped));
    OK(cuGraphExecDestroy(first));
    OK(cuDeviceGraphMemTrim(0));
    CHECK(left() == before);
    OK(cuCtxPopCurrent(&popped));
    OK(cuGreenCtxDestroy(green));
    OK(cuDevicePrimaryCtxRelease(0));
}

static void a_graph_that_allocates_nothing_leaves_the_graph_memory_of_other_contexts(void)
{
    CUcontext primary = NULL, popped = NULL;
    CUgraphExec plain = NULL;
    CUgraph graph = capture("spin_us_10", 1);
    OK(cuGraphInstantiate(&plain, graph, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    size_t before = left();
    OK(cuCtxPushCurrent(primary));
    CUgraphExec allocates = uploaded(NULL);
    OK(cuCtxPopCurrent(&popped));
    OK(cuGraphLaunch(plain, stream));
    OK(cuCtxPushCurrent(primary));
    OK(cuGraphExecDestroy(allocates));
    OK(cuDeviceGraphMemTrim(0));
    OK(cuCtxPopCurrent(&popped));
    CHECK(left() == before);
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuGraphExecDestroy(plain));
    OK(cuGraphDestroy(graph));
}

static void memory_allocated_in_a_captured_stream_is_its_graphs(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUdeviceptr address = 0;
    size_t before = left();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&address, 6 << 20, stream));
    OK(cuMemFreeAsync(address, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    CHECK(left() == before);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(before - left() == 6 << 20);
    OK(cuGraphExecDestroy(exec));
    OK(cuDeviceGraphMemTrim(0));
    CHECK(left() == before);
    OK(cuGraphDestroy(graph));
}

static void a_child_graph_is_copied_into_its_node_and_with_allocations_moved(void)
{
    CUgraph outer = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node = NULL;
    CUgraph child = capture("spin_us_1000", 2);
    OK(cuGraphCreate(&outer, 0));
    CHECK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, outer) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, child));
    OK(cuGraphDestroy(child));
    OK(cuGraphInstantiate(&exec, outer, 0));
    double begin = seconds();
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(seconds() - begin >= 0.002);
    OK(cuGraphExecDestroy(exec));
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.bytesize = 10 << 20};
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphAddMemAllocNode(&node, child, NULL, 0, &alloc));
    CHECK(cuGraphAddChildGraphNode(&node, outer, NULL, 0, child) == CUDA_ERROR_INVALID_VALUE);
    CUgraphNodeParams moves = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    moves.graph.graph = child;
    moves.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    OK(cuGraphAddNode_v2(&node, outer, NULL, NULL, 0, &moves));
    OK(cuGraphDestroy(outer));
}

/* Kernels set no value here: a loop's body runs as often as the default value says. */
static void a_conditional_node_runs_the_body_of_its_value_and_takes_no_allocation(void)
{
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node = NULL;
    CUgraphNodeParams asked = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphConditionalHandleCreate(&asked.conditional.handle, graph, NULL, 4, CU_GRAPH_COND_ASSIGN_DEFAULT));
    asked.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    asked.conditional.size = 2;
    CHECK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &asked) == CUDA_ERROR_INVALID_VALUE);
    asked.conditional.size = 1;
    OK(cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &asked));
    CUgraph body = asked.conditional.phGraph_out[0];
    CUgraph same = NULL;
    CUfunction function = kernel("spin_us_1000");
    OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch(function, stream);
    OK(cuStreamEndCapture(stream, &same));
    CHECK(same == body);
    OK(cuGraphInstantiate(&exec, graph, 0));
    double begin = seconds();
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(seconds() - begin >= 0.004);
    OK(cuGraphExecDestroy(exec));
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.bytesize = 1 << 20};
    memory.poolProps.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    OK(cuGraphAddMemAllocNode(&node, body, NULL, 0, &memory));
    CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(graph));
}

int main(void)
{
    start();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    HOLDS(a_captured_stream_does_nothing_until_its_graph_is_launched);
    HOLDS(unsafe_calls_invalidate_a_global_capture);
    HOLDS(a_relaxed_thread_may_call_what_it_likes);
    HOLDS(the_captured_stream_itself_allows_no_synchronisation);
    HOLDS(another_threads_event_query_breaks_a_global_capture);
    HOLDS(the_legacy_stream_breaks_the_capture_of_a_blocking_stream);
    HOLDS(a_stream_that_waits_for_a_captured_event_is_captured_too);
    HOLDS(an_event_of_a_capture_that_has_ended_is_waited_for_by_no_stream);
    HOLDS(graph_memory_is_taken_at_upload_and_kept_until_trimmed);
    HOLDS(graph_memory_of_a_green_context_is_the_primary_ones);
    HOLDS(a_graph_that_allocates_nothing_leaves_the_graph_memory_of_other_contexts);
    HOLDS(memory_allocated_in_a_captured_stream_is_its_graphs);
    HOLDS(a_child_graph_is_copied_into_its_node_and_with_allocations_moved);
    HOLDS(a_conditional_node_runs_the_body_of_its_value_and_takes_no_allocation);
    return 0;
}
