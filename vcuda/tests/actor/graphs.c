#include "actor.h"

static CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
}

static CUresult instantiated(CUresult result, const struct line *line, CUgraph graph)
{
    CUgraphExec *made = (CUgraphExec *)place(line->name);
    return result != CUDA_SUCCESS ? result : CU(cuGraphInstantiateWithFlags)(made, graph, 0);
}

static CUresult graph_of_one(struct line *line)
{
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS asked = allocation(line->one);
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
    return instantiated(result, line, graph);
}

static CUresult captured(struct line *line)
{
    CUgraph graph;
    CUdeviceptr pointer;
    CUstream stream;
    CUresult result = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    result |= CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    result |= CU(cuMemAllocAsync)(&pointer, line->one, stream);
    result |= CU(cuStreamEndCapture)(stream, &graph);
    return instantiated(result, line, graph);
}

static CUresult reused(struct line *line)
{
    CUgraph graph;
    CUgraphNode node, freed;
    CUDA_MEM_ALLOC_NODE_PARAMS asked = allocation(line->one);
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
    result |= CU(cuGraphAddMemFreeNode)(&freed, graph, &node, 1, asked.dptr);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, &freed, 1, &asked);
    return instantiated(result, line, graph);
}

static CUresult node_alone(struct line *line)
{
    CUgraph graph;
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS asked = allocation(line->one);
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    return result != CUDA_SUCCESS ? result : CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
}

static CUresult any_node_alone(struct line *line)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphNodeParams asked = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    asked.alloc.poolProps = allocation(0).poolProps;
    asked.alloc.bytesize = line->one;
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    return result != CUDA_SUCCESS ? result : CU(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0, &asked);
}

static CUresult upload(struct line *line)
{
    return CU(cuGraphUpload)((CUgraphExec)*place(line->name), NULL);
}

static CUresult launched(struct line *line)
{
    CUresult result = CU(cuGraphLaunch)((CUgraphExec)*place(line->name), NULL);
    return result != CUDA_SUCCESS ? result : CU(cuStreamSynchronize)(NULL);
}

static CUresult ended(struct line *line)
{
    return CU(cuGraphExecDestroy)((CUgraphExec)*place(line->name));
}

static CUresult trimmed(struct line *line)
{
    (void)line;
    return CU(cuDeviceGraphMemTrim)(0);
}

const struct verb graph_verbs[] = {
    {"graph", graph_of_one}, {"capture", captured},     {"regraph", reused}, {"node", node_alone},    {"anynode", any_node_alone},
    {"upload", upload},      {"launchgraph", launched}, {"endgraph", ended}, {"trimgraphs", trimmed}, {NULL, NULL},
};
