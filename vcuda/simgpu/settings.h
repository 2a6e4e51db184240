/* What a simulated node is like. Read from the environment by the process that makes the node; the others find it there. */
#ifndef SIMGPU_SETTINGS_H
#define SIMGPU_SETTINGS_H

#include <stdint.h>

struct sim_settings {
    uint32_t devices;
    uint32_t fast_clock;       /* waiting moves the clock instead of taking time */
    uint32_t call_costs;       /* calls take as long as a real driver's */
    uint32_t driver_version;   /* as cuDriverGetVersion gives it: 11080, 12090, 13000 */
    uint32_t host_pid_offset;  /* host pid - pid: shows code that confuses the two */
    uint32_t managed_resident; /* managed memory lies on the device from the first; otherwise on the host alone */
    uint32_t clock_ppm;        /* millionths of a second that the GPU's clock counts in one */
    uint64_t memory_bytes;     /* of each device */
    uint64_t context_bytes;    /* what a context costs before anything is allocated in it */
    uint64_t slice_low_ns;     /* a time slice is drawn from [low, high] */
    uint64_t slice_high_ns;
    uint64_t switch_ns;        /* changing from one context to another */
    uint64_t copy_bytes_per_us;
    uint64_t teardown_ns;      /* from a process's death to the release of what it held */
    uint64_t pool_step;        /* pools grow by multiples of this */
    uint64_t kernel_ns;        /* duration of kernels whose name says none */
};

/* Every field from SIMGPU_*; ends the process with one line when a value is no number or out of range. */
struct sim_settings sim_settings_from_environment(void);

#endif
