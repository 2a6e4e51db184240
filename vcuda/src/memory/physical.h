/* physical.h: references to physical memory, for all hooks that take or drop them. */
#ifndef VCUDA_PHYSICAL_H
#define VCUDA_PHYSICAL_H

#include "loading/driver.h"
#include "memory/allocations.h"

/* One reference fewer, before the driver drops it; the charge is loose until physical_dropped knows whether it was the
 * last. False when the handle is none of ours. */
bool physical_dropping(CUmemGenericAllocationHandle handle, struct allocation *physical);
/* After the driver did (`result`) or did not. */
void physical_dropped(CUresult result, CUmemGenericAllocationHandle handle, bool ours, const struct allocation *physical);

#endif
