/* granule.h: what the driver really takes for an allocation. */
#ifndef VCUDA_GRANULE_H
#define VCUDA_GRANULE_H

#include <stdint.h>

#define GRANULE (2ull << 20)

/* Up to the next multiple; less than `bytes` when that does not fit into 64 bits. */
static inline uint64_t granule_up(uint64_t bytes, uint64_t granule)
{
    return (bytes + granule - 1) / granule * granule;
}

/* Linear memory comes in blocks of 2 MiB. Up to 1 MiB several allocations share one, each a multiple of 512 bytes;
 * what such a block has unused shows in the driver's figures, by which the node corrects ours. */
static inline uint64_t granule_linear(uint64_t bytes)
{
    return granule_up(bytes, bytes <= GRANULE / 2 ? 512 : GRANULE);
}

#endif
