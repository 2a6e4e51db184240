/* graph_needs.h: the most device memory that a graph's allocation nodes can take. */
#ifndef VCUDA_GRAPH_NEEDS_H
#define VCUDA_GRAPH_NEEDS_H

#include "loading/driver.h"

#include <stdint.h>

/* Bytes, 0 where it allocates nothing; `*ordinal` becomes the device of the first that allocates. Memory on a second device
 * is left to the node's figures. */
uint64_t graph_needs(CUgraph graph, CUdevice *ordinal);

#endif
