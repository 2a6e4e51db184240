/* Graphs: lists of device work in the order in which it was added; edges are looked at only for memory that a node takes
 * over from the node right before it that freed it. */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "sim_driver.h"

struct CUgraphNode_st {
    CUgraphNode next;
    CUgraph graph;
    struct sim_op op;     /* of kind OP_WAIT when the node is no work on the device */
    uint64_t alloc_bytes; /* of a node that allocates */
    CUmemPoolProps pool;  /* and where */
    uint64_t address;     /* of what a node made by hand allocates or frees */
    uint64_t free_bytes;  /* of a node that frees: what no allocation has taken over yet */
    int takes_over;       /* allocates where another has freed */
    CUgraph child; /* the node's own */
    struct sim_condition *condition; /* of a conditional node: by its value, which bodies run */
    CUgraphConditionalNodeType how;
    CUgraph *bodies; /* the node's own */
    unsigned int body_count;
};

/* Kernels compute nothing here, so that none sets the value: it is the default one, or 0. A loop counts it down. */
struct sim_condition {
    struct sim_condition *next;
    unsigned int value;
};

struct CUgraph_st {
    CUgraphNode first;
    CUgraphNode last;
    struct sim_condition *conditions;
};

CUgraph sim_graph_make(void);
void sim_graph_end(CUgraph graph);
/* NULL: it has nodes that allocate, free or decide, of which there is no copy (cuda.h), or there is no memory. */
CUgraph sim_graph_copy(CUgraph graph);
CUgraphNode sim_graph_add(CUgraph graph, const struct sim_op *op);

#endif
