/* Device memory of a process, as the exported calls use it. */
#ifndef SIMGPU_MEMORY_H
#define SIMGPU_MEMORY_H

#include "driver.h"

enum sim_memory { SIM_LINEAR, SIM_MANAGED, SIM_ARRAY, SIM_POOLED, SIM_MAPPED, SIM_FOREIGN };

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

CUresult sim_allocate(CUcontext context, uint64_t bytes, enum sim_memory kind, uint64_t *address);
CUresult sim_release(uint64_t address, enum sim_memory kind);

/* A pool's allocation has gone; the caller holds sim_process_lock. */
void sim_pool_returned(CUmemoryPool pool, uint64_t bytes);

/* The table itself; the caller holds sim_process_lock. */
uint64_t sim_addresses(uint64_t bytes, uint64_t alignment);
void sim_allocation_add(struct sim_allocation *made);
void sim_allocation_remove(struct sim_allocation *gone);
struct sim_allocation *sim_allocation_find(uint64_t address);
struct sim_allocation *sim_allocation_within(uint64_t address);

#endif
