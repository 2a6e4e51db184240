/* physical.h: references to physical memory, for all hooks that take or drop them. */
#ifndef VCUDA_PHYSICAL_H
#define VCUDA_PHYSICAL_H

#include "loading/driver.h"
#include "memory/allocations.h"

/* The driver made memory of so many bytes, charged and not confirmed yet, or an object that takes none; or it imported it, where
 * the process may have had it already. What had the handle before has ended, even if the thread that ended it has yet to say so. */
void physical_made(CUmemGenericAllocationHandle handle, int index, uint64_t bytes, enum origin origin);
void physical_imported(CUmemGenericAllocationHandle handle);

/* One reference fewer, before the driver drops it; the charge is loose until physical_dropped knows whether it was the
 * last. False when the handle is none of ours. */
bool physical_dropping(CUmemGenericAllocationHandle handle, struct allocation *physical);
/* After the driver did (`result`) or did not. */
void physical_dropped(CUresult result, bool ours, const struct allocation *physical);

#endif
