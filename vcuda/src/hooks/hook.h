/* hook.h: what the hooks of the driver begin with.
 *
 * A hook starts with PASS_UNLESS_ACTIVE: in a process that is not held to anything, or on a driver without
 * the function, it does what the driver would.
 */
#ifndef VCUDA_HOOK_H
#define VCUDA_HOOK_H

#include "device.h"
#include "memory/charge.h"
#include "memory/orphans.h"
#include "process.h"
#include "state.h"

/* Returns the driver's own answer unless the shim is active. */
#define PASS_UNLESS_ACTIVE(name, ...)                        \
    do {                                                     \
        if (unlikely(!driver_ready() || REAL(name) == NULL)) \
            return CUDA_ERROR_NOT_FOUND;                     \
        if (unlikely(!active()))                             \
            return REAL(name)(__VA_ARGS__);                  \
    } while (0)

/* The stream that a twin for per-thread default streams means. */
static inline CUstream per_thread(CUstream stream)
{
    return stream == NULL ? CU_STREAM_PER_THREAD : stream;
}

/* Remembers and confirms a charged allocation. Without memory to remember it, it stays charged until the process
 * ends. */
static inline void remember(enum kind kind, uint64_t key, int index, uint64_t bytes, const void *context, uint64_t owner)
{
    struct allocation allocation = {.key = key,
                                    .bytes = bytes,
                                    .context = (uint64_t)(uintptr_t)context,
                                    .owner = owner,
                                    .device = (int16_t)index,
                                    .kind = (uint16_t)kind,
                                    .count = 1};
    allocations_put(&process()->allocations, &allocation);
    confirm(index, bytes);
}

/* Before the driver frees. The row is taken at once: when the driver has freed, another thread may be given the same
 * pointer. False when it is none of ours. */
static inline bool freeing(enum kind kind, uint64_t key, struct allocation *allocation)
{
    bool ours = allocations_take(&process()->allocations, kind, key, allocation);
    if (ours)
        unsettle(allocation->device, allocation->bytes);
    return ours;
}

/* After it did or did not. */
static inline CUresult freed(CUresult result, bool ours, const struct allocation *allocation)
{
    if (ours && result == CUDA_SUCCESS) {
        give_up(allocation);
    } else if (ours) {
        allocations_put(&process()->allocations, allocation);
        confirm(allocation->device, allocation->bytes);
    }
    return result;
}

#endif
