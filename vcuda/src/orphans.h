/* orphans.h: memory that outlives whoever pays for it. */
#ifndef VCUDA_ORPHANS_H
#define VCUDA_ORPHANS_H

#include <stdint.h>

/* Moves a loose charge of this process to the container, until the node has seen the driver release it. */
void orphan(int index, uint64_t bytes);

#endif
