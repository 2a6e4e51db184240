/* Building graphs by hand. */
#include <stdlib.h>

#include "graph.h"
#include "sim_memory.h"

static const struct sim_op no_work = {.kind = OP_WAIT};

static CUresult add(CUgraphNode *node, CUgraph graph, const struct sim_op *op)
{
    if (node == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *node = sim_graph_add(graph, op);
    return *node == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, CUfunction function)
{
    if (function == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_function_bring(function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_op op = sim_kernel_op(function->solo_ns, function->width);
    return add(node, graph, &op);
}

/* Memory that one of the nodes before it has freed and that is large enough; NULL: there is none. */
static CUgraphNode freed_before(const CUgraphNode *after, size_t count, uint64_t bytes)
{
    for (size_t i = 0; after != NULL && i < count; i++) {
        if (after[i] != NULL && after[i]->free_bytes >= bytes) {
            return after[i];
        }
    }
    return NULL;
}

static CUresult add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                          CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    if (parameters == NULL || parameters->bytesize == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = add(node, graph, &no_work);
    if (result == CUDA_SUCCESS) {
        (*node)->alloc_bytes = sim_granules(parameters->bytesize);
        (*node)->pool = parameters->poolProps;
        pthread_mutex_lock(&sim_process_lock);
        CUgraphNode from = freed_before(after, count, (*node)->alloc_bytes);
        (*node)->takes_over = from != NULL;
        (*node)->address = from != NULL ? from->address : sim_addresses(parameters->bytesize, SIM_GRANULE);
        if (from != NULL) {
            from->free_bytes = 0;
        }
        pthread_mutex_unlock(&sim_process_lock);
        parameters->dptr = (*node)->address;
    }
    return result;
}

static CUresult add_free(CUgraphNode *node, CUgraph graph, CUdeviceptr address)
{
    CUresult result = add(node, graph, &no_work);
    for (CUgraphNode one = graph == NULL ? NULL : graph->first; result == CUDA_SUCCESS && one != NULL; one = one->next) {
        if (one->alloc_bytes != 0 && one->address == address) {
            (*node)->address = address;
            (*node)->free_bytes = one->alloc_bytes;
        }
    }
    return result;
}

static CUresult add_child(CUgraphNode *node, CUgraph graph, CUgraph child, int moves)
{
    CUgraph own = child == NULL || child == graph ? NULL : (moves ? child : sim_graph_copy(child));
    CUresult result = own == NULL ? CUDA_ERROR_INVALID_VALUE : add(node, graph, &no_work);
    if (result == CUDA_SUCCESS) {
        (*node)->child = own;
    } else if (own != NULL && !moves) {
        sim_graph_end(own);
    }
    return result;
}

static CUresult add_conditional(CUgraphNode *node, CUgraph graph, CUDA_CONDITIONAL_NODE_PARAMS *asked)
{
    unsigned int most = asked->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : asked->type == CU_GRAPH_COND_TYPE_IF ? 2 : UINT32_MAX;
    if (asked->handle == 0 || asked->size == 0 || asked->size > most) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraph *bodies = calloc(asked->size, sizeof(CUgraph));
    CUresult result = bodies == NULL ? CUDA_ERROR_OUT_OF_MEMORY : add(node, graph, &no_work);
    for (unsigned int i = 0; result == CUDA_SUCCESS && i < asked->size; i++) {
        bodies[i] = sim_graph_make();
        result = bodies[i] == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (result != CUDA_SUCCESS) {
        free(bodies);
        return result;
    }
    (*node)->condition = (struct sim_condition *)(uintptr_t)asked->handle;
    (*node)->how = asked->type;
    (*node)->bodies = bodies;
    (*node)->body_count = asked->size;
    asked->phGraph_out = bodies;
    return CUDA_SUCCESS;
}

static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                        CUgraphNodeParams *parameters)
{
    if (parameters == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(node, graph, parameters->kernel.func);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = parameters->alloc.poolProps, .bytesize = parameters->alloc.bytesize};
        CUresult result = add_alloc(node, graph, after, count, &alloc);
        parameters->alloc.dptr = alloc.dptr;
        return result;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return add_free(node, graph, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return add_child(node, graph, parameters->graph.graph,
                         parameters->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return add_conditional(node, graph, &parameters->conditional);
    default:
        return add(node, graph, &no_work);
    }
}

SIM_EXPORT CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    SIM_ENTER(COST_EVENT);
    if (graph == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = sim_graph_make();
    return *graph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                                           unsigned int value, unsigned int flags)
{
    (void)context;
    SIM_ENTER(COST_EVENT);
    struct sim_condition *made = handle == NULL || graph == NULL || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT) != 0
                                     ? NULL
                                     : calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *made = (struct sim_condition){graph->conditions, flags & CU_GRAPH_COND_ASSIGN_DEFAULT ? value : 0};
    graph->conditions = made;
    *handle = (CUgraphConditionalHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    SIM_ENTER(COST_EVENT);
    if (graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_graph_end(graph);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    SIM_ENTER(COST_EVENT);
    if (graph == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t room = nodes == NULL ? 0 : *count;
    size_t there = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next, there++) {
        if (there < room) {
            nodes[there] = node;
        }
    }
    *count = there;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    SIM_ENTER(COST_EVENT);
    if (node == NULL || type == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *type = node->condition != NULL        ? CU_GRAPH_NODE_TYPE_CONDITIONAL
            : node->child != NULL          ? CU_GRAPH_NODE_TYPE_GRAPH
            : node->alloc_bytes != 0       ? CU_GRAPH_NODE_TYPE_MEM_ALLOC
            : node->op.kind == OP_KERNEL   ? CU_GRAPH_NODE_TYPE_KERNEL
            : node->op.kind == OP_COPY     ? CU_GRAPH_NODE_TYPE_MEMCPY
                                           : CU_GRAPH_NODE_TYPE_EMPTY;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    SIM_ENTER(COST_EVENT);
    if (node == NULL || parameters == NULL || node->alloc_bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = node->pool, .bytesize = node->alloc_bytes, .dptr = node->address};
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    SIM_ENTER(COST_EVENT);
    if (node == NULL || graph == NULL || node->child == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graph = node->child;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return add(node, graph, &no_work);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                                 const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return add_kernel(node, graph, parameters == NULL ? NULL : parameters->func);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                                    size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return add_kernel(node, graph, parameters == NULL ? NULL : parameters->func);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                                   CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    SIM_ENTER(COST_EVENT);
    return add_alloc(node, graph, after, count, parameters);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                                  CUdeviceptr address)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return add_free(node, graph, address);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                                     size_t count, CUgraph child)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return add_child(node, graph, child, 0);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                           CUgraphNodeParams *parameters)
{
    SIM_ENTER(COST_EVENT);
    return add_any(node, graph, after, count, parameters);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after,
                                              const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    (void)edges;
    SIM_ENTER(COST_EVENT);
    return add_any(node, graph, after, count, parameters);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                                 const CUDA_MEMCPY3D *copy, CUcontext context)
{
    (void)after;
    (void)count;
    (void)context;
    SIM_ENTER(COST_EVENT);
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op op = sim_copy_op(copy->WidthInBytes * copy->Height * copy->Depth,
                                   copy->dstMemoryType == CU_MEMORYTYPE_HOST);
    return add(node, graph, &op);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                                 const CUDA_MEMSET_NODE_PARAMS *memset, CUcontext context)
{
    (void)after;
    (void)count;
    (void)context;
    SIM_ENTER(COST_EVENT);
    struct sim_op op = sim_kernel_op(2000, 100);
    return memset == NULL ? CUDA_ERROR_INVALID_VALUE : add(node, graph, &op);
}

SIM_EXPORT CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                               const CUDA_HOST_NODE_PARAMS *host)
{
    (void)after;
    (void)count;
    SIM_ENTER(COST_EVENT);
    return host == NULL ? CUDA_ERROR_INVALID_VALUE : add(node, graph, &no_work);
}
