/* publisher.h: which thread writes a table that all read, where a fork may leave half of it to a child. */
#ifndef VCUDA_PUBLISHER_H
#define VCUDA_PUBLISHER_H

#include <stdbool.h>
#include <unistd.h>

/* Whether the calling thread is to write it: the first of its process. `by` is atomic: the process that writes, 0 before. */
static inline bool publisher_may(int *by)
{
    int ours = (int)getpid(), before = __atomic_load_n(by, __ATOMIC_RELAXED);
    return before != ours && __atomic_compare_exchange_n(by, &before, ours, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

#endif
