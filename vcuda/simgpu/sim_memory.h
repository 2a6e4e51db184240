/* Device memory of a process, as the exported calls use it. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "sim_driver.h"

enum sim_memory { SIM_LINEAR, SIM_MANAGED, SIM_ARRAY, SIM_POOLED, SIM_MAPPED, SIM_FOREIGN, SIM_IMPORTED };

struct sim_granule;

struct sim_allocation {
    struct sim_allocation *next;
    CUcontext context;
    struct sim_granule *granule; /* what a small allocation is cut from */
    uint64_t address;
    uint64_t bytes;
    uint64_t charged;
    enum sim_memory kind;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle; /* the physical allocation behind it, where it has one of its own; else 0 */
};

static inline uint64_t sim_granules(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) / SIM_GRANULE * SIM_GRANULE;
}

/* Whose the memory is that is allocated in a context: that of a part is the primary context's. */
static inline CUcontext sim_owner(CUcontext context)
{
    return context->whole != NULL ? context->whole : context;
}

CUresult sim_allocate(CUcontext context, uint64_t bytes, enum sim_memory kind, uint64_t *address);
CUresult sim_release(uint64_t address, enum sim_memory kind);

/* Gives an allocation a physical allocation of its own, which others can refer to; a small one all that its granule has. It
 * is 0 for what has no memory of its own. The caller holds sim_process_lock. */
CUresult sim_allocation_own(struct sim_allocation *found, CUmemGenericAllocationHandle *handle);

/* One reference more or less to physical memory, of a device or of the host, or to a multicast object. */
CUresult sim_reference(CUmemGenericAllocationHandle handle, int change, uint64_t *bytes);
int sim_is_multicast(CUmemGenericAllocationHandle handle);
int sim_is_on_host(CUmemGenericAllocationHandle handle);
CUresult sim_host_refer(CUmemGenericAllocationHandle handle, int change, uint64_t *bytes);

/* A pool's allocation has gone, and `taken_along` of the pool's memory with it; the caller holds sim_process_lock. */
void sim_pool_returned(CUmemoryPool pool, uint64_t bytes, uint64_t taken_along);

/* The table itself; the caller holds sim_process_lock. */
uint64_t sim_addresses(uint64_t bytes, uint64_t alignment);
void sim_allocation_add(struct sim_allocation *made);
void sim_allocation_remove(struct sim_allocation *gone);
struct sim_allocation *sim_allocation_find(uint64_t address);
struct sim_allocation *sim_allocation_within(uint64_t address);
/* Whether something is mapped to a part of the range. */
int sim_is_mapped(uint64_t address, uint64_t bytes);

/* The device whose memory is at a location; -1: none. */
int sim_location_device(const CUmemLocation *location);

#endif
