/* Physical allocations: shared by processes, counted by the references and mappings of each. */
#ifndef SIMGPU_HANDLE_H
#define SIMGPU_HANDLE_H

#include "sim_driver.h"

/* A device, an entry there, and a serial that differs between this use of the entry and earlier ones. */
struct sim_physical {
    uint32_t device;
    uint32_t index;
    uint32_t serial;
};

/* Takes memory of the device, with one reference for this process. */
CUresult sim_physical_make(uint32_t device, uint64_t bytes, struct sim_physical *made);
/* Turns memory that a context holds into a physical allocation of its own: the device's total stays the same. */
CUresult sim_physical_split(CUcontext context, uint64_t bytes, struct sim_physical *made);
/* One reference more or less; CUDA_ERROR_INVALID_VALUE when it is gone, or this process has none to give up. */
CUresult sim_physical_ref(struct sim_physical physical, int change, uint64_t *bytes);
/* Says that a descriptor may hold it from now on. */
void sim_physical_exported(struct sim_physical physical);

static inline CUmemGenericAllocationHandle sim_physical_pack(struct sim_physical physical)
{
    return (CUmemGenericAllocationHandle)physical.device << 56 | (CUmemGenericAllocationHandle)physical.serial << 16 |
           (physical.index + 1);
}

static inline struct sim_physical sim_physical_unpack(CUmemGenericAllocationHandle handle)
{
    return (struct sim_physical){.device = (uint32_t)(handle >> 56) % SIM_DEVICES,
                                 .index = ((uint32_t)handle & 0xffff) - 1,
                                 .serial = (uint32_t)(handle >> 16)};
}

#endif
