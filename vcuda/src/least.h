/* least.h: the smaller and the larger of two numbers. */
#ifndef VCUDA_LEAST_H
#define VCUDA_LEAST_H

#include <stdint.h>

static inline uint64_t least_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static inline uint64_t most_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

#endif
