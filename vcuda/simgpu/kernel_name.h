/* Kernels are described by their names, so that no compiler is needed to make a test program. */
#ifndef SIMGPU_KERNEL_NAME_H
#define SIMGPU_KERNEL_NAME_H

#include <stdint.h>

struct sim_kernel {
    uint8_t kind; /* OP_KERNEL, OP_MEET, OP_FLAG, OP_FAULT */
    uint8_t width;
    uint32_t meeting;
    uint32_t members;
    uint64_t solo_ns;
};

/*
 *   spin_ns_N, spin_us_N, spin_ms_N   occupies the whole GPU for that long
 *   ..._wP                            fills only P percent of it: such kernels of one context run beside each other
 *   meet_K_N                          waits until N kernels have come to meeting K (0-63), as a collective does
 *   flag                              waits until the 32-bit word that its first parameter points to is not zero
 *   fault                             ends at once with an error that each later call of its process returns
 * 1 when the name is one of these, else 0 and the fallback duration.
 */
int sim_kernel_parse(const char *name, uint64_t fallback_ns, struct sim_kernel *kernel);

#endif
