/* granule.h: what the driver really takes for an allocation. */
#ifndef VCUDA_GRANULE_H
#define VCUDA_GRANULE_H

#include <stdint.h>

/* Device memory is handed out in blocks of this size, aligned to it. */
#define GRANULE (2ull << 20)

/* Up to the next multiple; less than `bytes` when that does not fit into 64 bits. */
static inline uint64_t granule_up(uint64_t bytes, uint64_t granule)
{
    return (bytes + granule - 1) / granule * granule;
}

#endif
