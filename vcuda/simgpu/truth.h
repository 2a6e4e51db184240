/*
 * The processes that really occupied the GPU and held its memory, in a file that no driver call reveals. Tests read it; the
 * code under test must not. A device's lock guards the device's part and the records of its contexts; the node's lock guards
 * the groups.
 */
#ifndef SIMGPU_TRUTH_H
#define SIMGPU_TRUTH_H

#include <stdint.h>

#include "sim_device.h"

enum { SIM_TRUTH_CONTEXTS = 65536, SIM_TRUTH_GROUPS = 64, SIM_TRUTH_SLICES = 1 << 18, SIM_LABEL = 64 };

struct sim_truth_context {
    uint32_t pid; /* as the host sees it */
    uint32_t group;
    uint32_t device;
    uint32_t kernels;     /* completed */
    uint64_t begin_ns;
    uint64_t end_ns;      /* 0 while it lives */
    uint64_t occupied_ns; /* wall time in which it alone had the GPU's compute engine */
    uint64_t solo_ns;     /* work done, in time that it would take alone on the GPU */
    uint64_t bytes;
    uint64_t peak_bytes;
};

/* The processes of one container: those with the same SIMGPU_LABEL. */
struct sim_truth_group {
    char label[SIM_LABEL];
    uint64_t bytes[SIM_DEVICES];
    uint64_t peak_bytes[SIM_DEVICES];
};

struct sim_truth_slice {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t solo_ns;
    uint32_t context; /* index into contexts */
    uint32_t reserved;
};

struct sim_truth_device {
    uint64_t slice_count; /* ever written; the newest SIM_TRUTH_SLICES are kept */
    struct sim_truth_slice slices[SIM_TRUTH_SLICES];
};

struct sim_truth {
    uint32_t magic;
    uint32_t version;
    uint64_t size;
    uint64_t context_count; /* ever opened */
    uint32_t group_count;
    uint32_t reserved;
    struct sim_truth_group groups[SIM_TRUTH_GROUPS];
    struct sim_truth_context contexts[SIM_TRUTH_CONTEXTS];
    struct sim_truth_device devices[SIM_DEVICES];
};

uint32_t sim_truth_group(struct sim_truth *truth, const char *label);
uint32_t sim_truth_open_context(struct sim_truth *truth, uint32_t device, uint32_t pid, uint32_t group, uint64_t now_ns);
void sim_truth_occupied(struct sim_truth *truth, uint32_t device, uint32_t context, uint64_t from_ns, uint64_t to_ns,
                        uint64_t solo_ns);
/* Call it before the device's state takes memory, and after the device's state gives memory back: if the process is killed
 * in between, the truth is too much until the device is repaired, never too little. */
void sim_truth_memory(struct sim_truth *truth, uint32_t device, uint32_t context, int64_t change);

#endif
