/* hook_graph_nodes.c: what can never fit is refused when its node is added, as by a smaller GPU. Whether all that a graph
 * allocates fits is decided when it is brought to the device (hook_graph.c). */
#include "hooks/hook.h"
#include "memory/granule.h"

static CUresult can_fit(const CUmemPoolProps *pool, uint64_t bytes)
{
    CUdevice ordinal;
    if (!device_of_location(&pool->location, &ordinal))
        return CUDA_SUCCESS;
    int index = device_index(ordinal);
    if (index < 0)
        return device_refusal(ordinal);
    uint64_t whole = granule_up(bytes, GRANULE);
    if (whole >= bytes && whole <= memory_limit(index))
        return CUDA_SUCCESS;
    __atomic_add_fetch(&ledger->devices[index].oom, 1, __ATOMIC_RELAXED);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *asked)
{
    PASS_UNLESS_ACTIVE(cuGraphAddMemAllocNode, node, graph, after, count, asked);
    CUresult result = asked != NULL ? can_fit(&asked->poolProps, asked->bytesize) : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? REAL(cuGraphAddMemAllocNode)(node, graph, after, count, asked) : result;
}

/* The parameters of every node begin with its type; those of an allocation are of one layout in all forms of the call. */
static CUresult node_can_fit(const CUgraphNodeParams *asked)
{
    if (asked == NULL || asked->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_SUCCESS;
    return can_fit(&asked->alloc.poolProps, asked->alloc.bytesize);
}

#define ADDS(name, parameters, ...)                                       \
    EXPORT CUresult name parameters                                       \
    {                                                                     \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                            \
        CUresult result = node_can_fit(asked);                            \
        return result == CUDA_SUCCESS ? REAL(name)(__VA_ARGS__) : result; \
    }

#define WITH_EDGES                                                                                            \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, \
     CUgraphNodeParams *asked)

ADDS(cuGraphAddNode, (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *asked),
     node, graph, after, count, asked)
ADDS(cuGraphAddNode_v2, WITH_EDGES, node, graph, after, edges, count, asked)
ADDS(cuGraphAddNode_v3, WITH_EDGES, node, graph, after, edges, count, asked)
