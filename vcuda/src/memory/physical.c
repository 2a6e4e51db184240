#include "memory/physical.h"

#include "hooks/hook.h"
#include "memory/multicast.h"

bool physical_dropping(CUmemGenericAllocationHandle handle, struct allocation *physical)
{
    bool ours = allocations_find(&process()->allocations, KIND_PHYSICAL, handle, physical);
    if (ours)
        unsettle(physical->device, physical->bytes);
    if (ours && physical->owner == ORIGIN_MULTICAST && physical->count == 1)
        multicast_ends(handle, physical->extent != 0);
    return ours;
}

void physical_dropped(CUresult result, CUmemGenericAllocationHandle handle, bool ours, const struct allocation *physical)
{
    struct allocation now;
    if (!ours)
        return;
    if (result != CUDA_SUCCESS || allocations_count(&process()->allocations, KIND_PHYSICAL, handle, -1, &now) != 0) {
        confirm(physical->device, physical->bytes);
        return;
    }
    if (now.owner == ORIGIN_IMPORTED)
        opened_of_others(-1);
    give_up(&now);
}
