/* linear.h: charging linear memory as the driver places it.
 *
 * From 2 MiB on an allocation has blocks of its own. Smaller ones share blocks, and which of them share shows in
 * their addresses: the first in a block pays for it whole, the last to leave takes the charge along. Since the block
 * is known only once the driver has placed the allocation, a whole one is set aside before, and kept as the
 * process's spare when it was not needed: small allocations seldom touch the ledger.
 */
#ifndef VCUDA_LINEAR_H
#define VCUDA_LINEAR_H

#include "loading/driver.h"
#include "memory/allocations.h"

/* Before the driver allocates: false means out of memory. */
bool linear_reserve(int index, uint64_t bytes);
/* The driver failed. */
void linear_give_back(int index, uint64_t bytes);
/* The driver placed it at `pointer`. */
void linear_placed(int index, uint64_t bytes, uint64_t pointer, CUcontext context);
/* As freeing and freed (hook.h). */
bool linear_freeing(uint64_t pointer, struct allocation *allocation);
CUresult linear_freed(CUresult result, bool ours, const struct allocation *allocation);
/* A row of KIND_BLOCK was removed with its context and its charge (-1), or was put back (+1). */
void linear_blocks(int index, int change);
/* A context has ended, and what it had of small allocations with it. */
void linear_context_ended(int index);

#endif
