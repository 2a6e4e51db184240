#include "memory/physical.h"

#include "hooks/hook.h"
#include "memory/multicast.h"

static struct allocation row_of(CUmemGenericAllocationHandle handle, int index, uint64_t bytes, enum origin origin)
{
    static uint64_t serials; /* atomic */
    return (struct allocation){.key = handle,
                               .bytes = bytes,
                               .owner = origin,
                               .serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED),
                               .device = (int16_t)index,
                               .kind = KIND_PHYSICAL,
                               .count = 1};
}

/* Its last reference is dropped, and is charged no more. */
static void end(const struct allocation *physical)
{
    if (physical->owner == ORIGIN_IMPORTED)
        opened_of_others(-1);
    give_up(physical);
}

void physical_made(CUmemGenericAllocationHandle handle, int index, uint64_t bytes, enum origin origin)
{
    struct allocation made = row_of(handle, index, bytes, origin), before;
    if (allocations_replace(&process()->allocations, &made, &before)) {
        unsettle(before.device, before.bytes); /* the thread that drops it has done so, too, and confirms that */
        end(&before);
    }
    confirm(index, bytes);
}

void physical_imported(CUmemGenericAllocationHandle handle)
{
    struct allocation import = row_of(handle, 0, 0, ORIGIN_IMPORTED);
    if (!allocations_join(&process()->allocations, &import))
        opened_of_others(+1);
}

bool physical_dropping(CUmemGenericAllocationHandle handle, struct allocation *physical)
{
    bool ours = allocations_find(&process()->allocations, KIND_PHYSICAL, handle, physical);
    if (ours)
        unsettle(physical->device, physical->bytes);
    if (ours && physical->owner == ORIGIN_MULTICAST && physical->count == 1)
        multicast_ends(handle, physical->extent != 0);
    return ours;
}

void physical_dropped(CUresult result, bool ours, const struct allocation *physical)
{
    struct allocation now;
    if (!ours)
        return;
    if (result == CUDA_SUCCESS && allocations_drop(&process()->allocations, physical, &now) == 0)
        end(&now);
    else
        confirm(physical->device, physical->bytes);
}
