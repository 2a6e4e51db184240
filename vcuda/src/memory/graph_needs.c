/* graph_needs.c: an allocation node has its addresses from when it is added. Where its memory can take over what an earlier
 * node freed, the driver gives it the same ones: so a graph takes as much as the addresses of its nodes cover together. */
#include "memory/graph_needs.h"

#include <stdlib.h>

#include "device.h"
#include "memory/granule.h"

struct range {
    uint64_t begin, end;
};

struct inner {
    CUgraph graph;
    struct inner *next;
};

struct needs {
    struct range *ranges;
    size_t count, room;
    struct inner *inner; /* graphs inside those that were looked through, to be looked through, too */
    uint64_t unplaced;   /* bytes of nodes whose addresses are not known, or that there is no room to note */
    CUdevice ordinal;    /* -1: nothing is allocated yet */
};

static bool noted(struct needs *needs, struct range range)
{
    if (needs->count == needs->room) {
        size_t room = needs->room != 0 ? 2 * needs->room : 64;
        struct range *grown = realloc(needs->ranges, room * sizeof *grown);
        if (grown == NULL)
            return false;
        needs->ranges = grown;
        needs->room = room;
    }
    needs->ranges[needs->count++] = range;
    return true;
}

/* Of a node's memory; false: it is the host's. Managed memory that prefers no device can all be on the current one: a node
 * that is captured has the properties of its pool (cuda.h, cuMemAllocFromPoolAsync). */
static bool device_of(const CUmemPoolProps *properties, CUdevice *ordinal)
{
    if (device_of_location(&properties->location, ordinal))
        return true;
    return properties->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && REAL(cuCtxGetDevice)(ordinal) == CUDA_SUCCESS;
}

static void add_node(struct needs *needs, const CUDA_MEM_ALLOC_NODE_PARAMS *asked)
{
    uint64_t begin = asked->dptr / GRANULE * GRANULE, end = granule_up(asked->dptr + asked->bytesize, GRANULE);
    CUdevice ordinal;
    if (!device_of(&asked->poolProps, &ordinal))
        return;
    if (needs->ordinal < 0)
        needs->ordinal = ordinal;
    if (asked->dptr == 0 || end <= begin || !noted(needs, (struct range){begin, end}))
        needs->unplaced += granule_up(asked->bytesize, GRANULE);
}

/* Without memory to note it, what it allocates is left to the node's figures. */
static void add_inner(struct needs *needs, CUgraph graph)
{
    struct inner *inner = malloc(sizeof *inner);
    if (inner == NULL)
        return;
    *inner = (struct inner){graph, needs->inner};
    needs->inner = inner;
}

static void add_graph(struct needs *needs, CUgraph graph)
{
    size_t count = 0;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes == NULL || REAL(cuGraphGetNodes)(graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        CUgraphNodeType type;
        CUgraph child;
        CUDA_MEM_ALLOC_NODE_PARAMS asked;
        if (REAL(cuGraphNodeGetType)(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph)(nodes[i], &child) == CUDA_SUCCESS)
            add_inner(needs, child);
        else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && REAL(cuGraphMemAllocNodeGetParams)(nodes[i], &asked) == CUDA_SUCCESS)
            add_node(needs, &asked);
    }
    free(nodes);
}

static void add_graphs(struct needs *needs, CUgraph outermost)
{
    struct inner *next;
    add_graph(needs, outermost);
    while ((next = needs->inner) != NULL) {
        needs->inner = next->next;
        add_graph(needs, next->graph);
        free(next);
    }
}

static int by_begin(const void *one, const void *other)
{
    uint64_t a = ((const struct range *)one)->begin, b = ((const struct range *)other)->begin;
    return a < b ? -1 : a > b;
}

static uint64_t covered(struct range *ranges, size_t count)
{
    uint64_t sum = 0, reached = 0;
    if (count != 0)
        qsort(ranges, count, sizeof *ranges, by_begin);
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = ranges[i].begin > reached ? ranges[i].begin : reached;
        if (ranges[i].end > begin) {
            sum += ranges[i].end - begin;
            reached = ranges[i].end;
        }
    }
    return sum;
}

uint64_t graph_needs(CUgraph graph, CUdevice *ordinal)
{
    struct needs needs = {.ordinal = -1};
    if (REAL(cuGraphMemAllocNodeGetParams) == NULL)
        return 0;
    add_graphs(&needs, graph);
    uint64_t bytes = needs.unplaced + covered(needs.ranges, needs.count);
    free(needs.ranges);
    *ordinal = needs.ordinal;
    return bytes;
}
