/* orphans.h: memory that other processes may hold after its maker has freed it, or has died. */
#ifndef VCUDA_ORPHANS_H
#define VCUDA_ORPHANS_H

#include "memory/allocations.h"

/* Notes that others can get at an allocation from now on; once, however often it is exported. */
void shared_with_others(enum kind kind, uint64_t key);
/* The same for so much of a pool. */
void others_may_hold(int index, uint64_t bytes);
/* This process opened memory of another (+1), or closed it. */
void opened_of_others(int change);

/* After the driver freed a loose charge of this process: discharges it, or, if it was exported, leaves it to the container
 * until the node has seen the driver release it. */
void give_up(const struct allocation *allocation);
/* The same for a part of something exported. */
void orphan(int index, uint64_t bytes);

#endif
