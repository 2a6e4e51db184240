/* Graphs, their executable forms, and the memory that they allocate while they run. */
#include "graph.h"

#include <stdlib.h>

#include "capture.h"
#include "sim_memory.h"

struct CUgraphExec_st {
    CUcontext context;
    uint64_t alloc_bytes;
    int uploaded; /* its memory is reserved on the device */
    uint32_t count;
    struct sim_op *ops; /* kernels that follow each other are one operation: a launch takes one place in the queue */
};

/* Memory of graphs, per device: used by executables that were uploaded, reserved until it is trimmed. */
static struct {
    CUcontext context;
    uint64_t life; /* of that context: with it went its memory */
    uint64_t used;
    uint64_t reserved;
} graph_memory[SIM_DEVICES]; /* guarded by sim_process_lock */

CUgraph sim_graph_make(void)
{
    return calloc(1, sizeof(struct CUgraph_st));
}

void sim_graph_end(CUgraph graph)
{
    while (graph->first != NULL) {
        CUgraphNode node = graph->first;
        graph->first = node->next;
        for (unsigned int i = 0; i < node->body_count; i++) {
            sim_graph_end(node->bodies[i]);
        }
        if (node->child != NULL) {
            sim_graph_end(node->child);
        }
        free(node->bodies);
        free(node);
    }
    while (graph->conditions != NULL) {
        struct sim_condition *condition = graph->conditions;
        graph->conditions = condition->next;
        free(condition);
    }
    free(graph);
}

CUgraphNode sim_graph_add(CUgraph graph, const struct sim_op *op)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL) {
        return NULL;
    }
    *node = (struct CUgraphNode_st){.graph = graph, .op = *op};
    if (graph->last != NULL) {
        graph->last->next = node;
    } else {
        graph->first = node;
    }
    graph->last = node;
    return node;
}

CUgraph sim_graph_copy(CUgraph graph)
{
    CUgraph made = sim_graph_make();
    for (CUgraphNode node = graph->first; made != NULL && node != NULL; node = node->next) {
        int alone = node->alloc_bytes != 0 || node->free_bytes != 0 || node->condition != NULL;
        CUgraphNode copy = alone ? NULL : sim_graph_add(made, &node->op);
        if (copy != NULL && node->child != NULL) {
            copy->child = sim_graph_copy(node->child);
        }
        if (copy == NULL || (node->child != NULL && copy->child == NULL)) {
            sim_graph_end(made);
            made = NULL;
        }
    }
    return made;
}

/* The body that a conditional node runs, and how often; NULL: none. */
static CUgraph body_of(CUgraphNode node, unsigned int *times)
{
    unsigned int value = node->condition->value;
    unsigned int which = node->how == CU_GRAPH_COND_TYPE_SWITCH ? value : node->how == CU_GRAPH_COND_TYPE_IF && value == 0;
    *times = node->how == CU_GRAPH_COND_TYPE_WHILE ? value : 1;
    return which < node->body_count ? node->bodies[which] : NULL;
}

/* Kernels, copies, fills, empty nodes, and graphs of these may be in a body. */
static int may_be_body(CUgraph graph)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->alloc_bytes != 0 || node->free_bytes != 0 || (node->child != NULL && !may_be_body(node->child))) {
            return 0;
        }
    }
    return 1;
}

static int is_good(CUgraph graph)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->child != NULL && !is_good(node->child)) {
            return 0;
        }
        for (unsigned int i = 0; i < node->body_count; i++) {
            if (!may_be_body(node->bodies[i]) || !is_good(node->bodies[i])) {
                return 0;
            }
        }
    }
    return 1;
}

static uint32_t count_nodes(CUgraph graph)
{
    uint32_t count = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        unsigned int times = 1;
        CUgraph inside = node->condition != NULL ? body_of(node, &times) : node->child;
        count += inside != NULL ? times * count_nodes(inside) : 1;
    }
    return count;
}

static void flatten(CUgraph graph, CUgraphExec exec)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        unsigned int times = 1;
        CUgraph inside = node->condition != NULL ? body_of(node, &times) : node->child;
        for (unsigned int i = 0; i < times && inside != NULL; i++) {
            flatten(inside, exec);
        }
        if (inside != NULL || node->condition != NULL) {
            continue;
        }
        struct sim_op *last = exec->count > 0 ? &exec->ops[exec->count - 1] : NULL;
        exec->alloc_bytes += node->takes_over ? 0 : node->alloc_bytes;
        if (node->op.kind == OP_WAIT) {
            continue;
        }
        if (node->op.kind == OP_KERNEL && last != NULL && last->kind == OP_KERNEL && last->width == node->op.width) {
            last->solo_ns += node->op.solo_ns;
            last->left_ps += node->op.left_ps;
        } else {
            exec->ops[exec->count++] = node->op;
        }
    }
}

static CUresult fill(CUgraphExec exec, CUgraph graph)
{
    struct sim_op *ops = calloc(count_nodes(graph) + 1, sizeof *ops);
    if (ops == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->ops = ops;
    exec->count = 0;
    flatten(graph, exec);
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS || exec == NULL || graph == NULL || !is_good(graph)) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExec made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->context = sim_owner(context);
    result = fill(made, graph);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *exec = made;
    return CUDA_SUCCESS;
}

/* Takes over another graph's work; what memory it reserved stays as it is. */
static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResult *outcome)
{
    if (exec == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op *before = exec->ops;
    uint64_t bytes = exec->alloc_bytes;
    CUresult result = fill(exec, graph);
    exec->alloc_bytes = bytes;
    if (result == CUDA_SUCCESS) {
        free(before);
    }
    if (outcome != NULL) {
        *outcome = result == CUDA_SUCCESS ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR;
    }
    return result;
}

static CUresult upload(CUgraphExec exec)
{
    CUresult result = CUDA_SUCCESS;
    if (exec->alloc_bytes == 0) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&sim_process_lock);
    uint32_t device = exec->context->device;
    if (graph_memory[device].life != exec->context->life) {
        graph_memory[device].context = exec->context;
        graph_memory[device].life = exec->context->life;
        graph_memory[device].used = 0;
        graph_memory[device].reserved = 0;
    }
    if (!exec->uploaded) {
        uint64_t needed = graph_memory[device].used + exec->alloc_bytes;
        uint64_t growth = needed > graph_memory[device].reserved ? needed - graph_memory[device].reserved : 0;
        result = growth == 0 ? CUDA_SUCCESS : sim_charge(exec->context, growth);
        if (result == CUDA_SUCCESS) {
            graph_memory[device].used = needed;
            graph_memory[device].reserved += growth;
        }
    }
    exec->uploaded = result == CUDA_SUCCESS;
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static CUresult launch(CUgraphExec exec, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = exec == NULL ? CUDA_ERROR_INVALID_HANDLE : sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int capturing = sim_capturing(stream);
    result = capturing ? CUDA_SUCCESS : upload(exec);
    for (uint32_t i = 0; i < exec->count && result == CUDA_SUCCESS; i++) {
        result = capturing ? sim_capture_add(stream, &exec->ops[i]) : sim_submit(stream, &exec->ops[i], NULL);
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    SIM_ENTER(COST_MEMORY);
    if (exec == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&sim_process_lock);
    if (exec->uploaded && graph_memory[exec->context->device].life == exec->context->life) {
        graph_memory[exec->context->device].used -= exec->alloc_bytes;
    }
    pthread_mutex_unlock(&sim_process_lock);
    free(exec->ops);
    free(exec);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error,
                                              CUgraphExecUpdateResult *outcome)
{
    (void)error;
    SIM_ENTER(COST_GRAPH);
    return update(exec, graph, outcome);
}

SIM_EXPORT CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    SIM_ENTER(COST_GRAPH);
    return update(exec, graph, info == NULL ? NULL : &info->result);
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    SIM_ENTER(COST_VIRTUAL);
    if (device < 0 || (uint32_t)device >= sim_seat.node->settings.devices) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&sim_process_lock);
    if (graph_memory[device].reserved > graph_memory[device].used) {
        sim_discharge(graph_memory[device].context, graph_memory[device].reserved - graph_memory[device].used);
        graph_memory[device].reserved = graph_memory[device].used;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void *value)
{
    SIM_ENTER(COST_QUERY);
    if (device < 0 || (uint32_t)device >= sim_seat.node->settings.devices || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int reserved = which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT || which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    *(cuuint64_t *)value = reserved ? graph_memory[device].reserved : graph_memory[device].used;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
    (void)error;
    (void)log;
    (void)size;
    SIM_ENTER(COST_GRAPH);
    return instantiate(exec, graph);
}

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                                                  size_t size)
{
    (void)error;
    (void)log;
    (void)size;
    SIM_ENTER(COST_GRAPH);
    return instantiate(exec, graph);
}

SIM_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    SIM_ENTER(COST_GRAPH);
    CUresult result = instantiate(exec, graph);
    return result == CUDA_SUCCESS && (flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) ? upload(*exec) : result;
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result = parameters == NULL ? CUDA_ERROR_INVALID_VALUE : instantiate(exec, graph);
    if (result == CUDA_SUCCESS && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        result = upload(*exec);
    }
    if (parameters != NULL) {
        parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    return result;
}

SIM_SYNC_TWINS(cuGraphInstantiateWithParams, _ptsz, COST_GRAPH,
               (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters),
               ((void)stream, instantiate_with(exec, graph, parameters)))
SIM_TWINS(cuGraphLaunch, _ptsz, COST_GRAPH, (CUgraphExec exec, CUstream stream), launch(exec, stream))
SIM_TWINS(cuGraphUpload, _ptsz, COST_GRAPH, (CUgraphExec exec, CUstream stream),
          ((void)stream, exec == NULL ? CUDA_ERROR_INVALID_HANDLE : upload(exec)))
