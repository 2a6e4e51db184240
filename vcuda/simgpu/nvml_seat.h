/* What the calls of the simulated NVML share: a seat from which the node is looked at. */
#ifndef SIMGPU_NVML_SEAT_H
#define SIMGPU_NVML_SEAT_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include "node.h"

#define SIM_EXPORT __attribute__((visibility("default")))

struct nvmlDevice_st {
    uint32_t index;
};

extern struct sim_seat nvml_seat;

/* The pid by which NVML names a client of the node; its own where this process cannot see it. */
uint32_t nvml_host_pid(uint32_t client);

/* The handle of a device; NVML_ERROR_GPU_IS_LOST where it has fallen off the bus. */
nvmlReturn_t nvml_device(unsigned int index, nvmlDevice_t *device);

/* NVML_SUCCESS when the library is initialised and the handle is a device's. */
nvmlReturn_t nvml_check(nvmlDevice_t device);

#endif
