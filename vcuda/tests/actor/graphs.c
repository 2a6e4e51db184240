#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels.h"
#include "actor.h"

static CUDA_MEM_ALLOC_NODE_PARAMS allocation(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = bytes};
}

/* By which form executables are made from now on. */
static char how[16] = "flags";

static CUresult takes_form(struct line *line)
{
    snprintf(how, sizeof how, "%.15s", line->name);
    return CUDA_SUCCESS;
}

static CUresult instantiated(CUresult result, const struct line *line, CUgraph graph)
{
    CUgraphExec *made = (CUgraphExec *)place(line->name);
    bool uploads = strstr(how, "upload") != NULL;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {.flags = uploads ? CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD : 0};
    if (result != CUDA_SUCCESS)
        return result;
    if (strncmp(how, "with", 4) == 0)
        return CU(cuGraphInstantiateWithParams)(made, graph, &parameters);
    if (strcmp(how, "log") == 0)
        return CU(cuGraphInstantiate)(made, graph, NULL, NULL, 0);
    if (strcmp(how, "log2") == 0)
        return CU(cuGraphInstantiate_v2)(made, graph, NULL, NULL, 0);
    return CU(cuGraphInstantiateWithFlags)(made, graph, parameters.flags);
}

static CUresult graph_of(struct line *line, CUDA_MEM_ALLOC_NODE_PARAMS asked)
{
    CUgraph graph;
    CUgraphNode node;
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    result |= CU(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &asked);
    return instantiated(result, line, graph);
}

static CUresult graph_of_one(struct line *line)
{
    return graph_of(line, allocation(line->one));
}

static CUresult graph_of_managed(struct line *line)
{
    CUDA_MEM_ALLOC_NODE_PARAMS asked = allocation(line->one);
    asked.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    asked.poolProps.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 1};
    return graph_of(line, asked);
}

/* In so many graphs, each inside the next one; one by default. */
static CUresult nested(struct line *line)
{
    CUgraph outer, inner;
    CUgraphNode node;
    CUgraphNodeParams child = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    CUDA_MEM_ALLOC_NODE_PARAMS asked = allocation(line->one);
    CUresult result = CU(cuGraphCreate)(&inner, 0);
    result |= CU(cuGraphAddMemAllocNode)(&node, inner, NULL, 0, &asked);
    for (size_t depth = line->two != 0 ? line->two : 1; depth != 0; depth--, inner = outer) {
        result |= CU(cuGraphCreate)(&outer, 0);
        child.graph.graph = inner;
        child.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE; /* one that allocates cannot be copied */
        result |= CU(cuGraphAddNode_v2)(&node, outer, NULL, NULL, 0, &child);
    }
    return instantiated(result, line, inner);
}

static CUresult begun(CUstream stream, const char *form)
{
    CUgraph graph;
    if (form[0] == '1')
        return CU(cuStreamBeginCapture)(stream);
    if (form[0] != 't')
        return CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    return result | CU(cuStreamBeginCaptureToGraph)(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED);
}

static CUresult captured_by(struct line *line, const char *form)
{
    CUgraph graph;
    CUdeviceptr pointer;
    CUstream stream;
    CUresult result = CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    result |= begun(stream, form);
    result |= CU(cuMemAllocAsync)(&pointer, line->one, stream);
    result |= CU(cuStreamEndCapture)(stream, &graph);
    result |= CU(cuStreamDestroy_v2)(stream);
    return instantiated(result, line, graph);
}

static CUresult captured(struct line *line)
{
    return captured_by(line, "2");
}

static CUresult captured_by_the_first(struct line *line)
{
    return captured_by(line, "1");
}

static CUresult captured_to_a_graph(struct line *line)
{
    return captured_by(line, "to");
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

static CUresult old_node_alone(struct line *line)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphNodeParams asked = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    asked.alloc.poolProps = allocation(0).poolProps;
    asked.alloc.bytesize = line->one;
    CUresult result = CU(cuGraphCreate)(&graph, 0);
    return result != CUDA_SUCCESS ? result : CU(cuGraphAddNode)(&node, graph, NULL, 0, &asked);
}

/* So many executables of one graph of 20 kernels, each brought to the device. */
static CUresult executables(struct line *line)
{
    CUgraph graph;
    CUstream stream;
    CUmodule module;
    CUfunction function;
    CUresult result = CU(cuModuleLoadData)(&module, kernel_module("spin_us_1"));
    result |= CU(cuModuleGetFunction)(&function, module, "spin_us_1");
    result |= CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING);
    result |= CU(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    for (int i = 0; i < 20 && result == CUDA_SUCCESS; i++)
        result |= CU(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    result |= CU(cuStreamEndCapture)(stream, &graph);
    for (int i = 0; i < atoi(line->name) && result == CUDA_SUCCESS; i++) {
        CUgraphExec executable;
        result = CU(cuGraphInstantiateWithFlags)(&executable, graph, 0);
        if (result == CUDA_SUCCESS)
            result = CU(cuGraphUpload)(executable, stream);
    }
    return result != CUDA_SUCCESS ? result : CU(cuStreamSynchronize)(stream);
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
    {"upload", upload},      {"launchgraph", launched}, {"endgraph", ended}, {"trimgraphs", trimmed},
    {"nested", nested},      {"how", takes_form},     {"oldnode", old_node_alone},
    {"capture1", captured_by_the_first}, {"captureto", captured_to_a_graph}, {"executables", executables}, {"managedgraph", graph_of_managed}, {NULL, NULL},
};
