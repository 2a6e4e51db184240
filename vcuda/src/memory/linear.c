#include "memory/linear.h"

#include "hooks/hook.h"
#include "memory/granule.h"

/* The spare block of each device: 1 while this process has one set aside. Atomic. */
static bool take_spare(int index)
{
    return __atomic_exchange_n(&process()->spare[index], 0, __ATOMIC_ACQ_REL) != 0;
}

/* Sets an unconfirmed block aside while there are small allocations, and otherwise gives it back, the spare with it. */
static void keep_or_discharge(int index)
{
    struct process *us = process();
    bool wanted = __atomic_load_n(&us->blocks[index], __ATOMIC_ACQUIRE) != 0;
    bool had = __atomic_exchange_n(&us->spare[index], wanted, __ATOMIC_ACQ_REL) != 0;
    uint64_t surplus = (wanted ? 0 : GRANULE) + (had ? GRANULE : 0);
    discharge(index, surplus);
}

bool linear_reserve(int index, uint64_t bytes)
{
    if (bytes < GRANULE)
        return take_spare(index) || charge(index, GRANULE);
    uint64_t whole = granule_up(bytes, GRANULE);
    return whole >= bytes && charge(index, whole);
}

void linear_give_back(int index, uint64_t bytes)
{
    if (bytes < GRANULE)
        keep_or_discharge(index);
    else
        discharge(index, granule_up(bytes, GRANULE));
}

static void block_begun(int index)
{
    __atomic_add_fetch(&process()->blocks[index], 1, __ATOMIC_ACQ_REL);
    confirm(index, GRANULE);
}

void linear_placed(int index, uint64_t bytes, uint64_t pointer, CUcontext context)
{
    if (bytes >= GRANULE) {
        remember(KIND_LINEAR, pointer, index, granule_up(bytes, GRANULE), context, 0);
        return;
    }
    struct allocation block = {.key = pointer / GRANULE + 1,
                               .bytes = GRANULE,
                               .context = (uint64_t)(uintptr_t)context,
                               .device = (int16_t)index,
                               .kind = KIND_BLOCK,
                               .count = 1};
    remember(KIND_LINEAR, pointer, index, 0, context, block.key);
    if (allocations_join(&process()->allocations, &block))
        keep_or_discharge(index);
    else
        block_begun(index);
}

/* Whether the allocation lies in a block with others; its block may end with it. */
static bool shares(const struct allocation *allocation)
{
    return allocation->owner != 0;
}

bool linear_freeing(uint64_t pointer, struct allocation *allocation)
{
    bool ours = freeing(KIND_LINEAR, pointer, allocation);
    if (ours && shares(allocation))
        unsettle(allocation->device, GRANULE);
    return ours;
}

CUresult linear_freed(CUresult result, bool ours, const struct allocation *allocation)
{
    struct allocation block;
    freed(result, ours, allocation);
    if (!ours || !shares(allocation))
        return result;
    if (result == CUDA_SUCCESS && allocations_count(&process()->allocations, KIND_BLOCK, allocation->owner, -1, &block) == 0) {
        __atomic_sub_fetch(&process()->blocks[allocation->device], 1, __ATOMIC_ACQ_REL);
        if (allocation_exported(&block))
            give_up(&block);
        else
            keep_or_discharge(allocation->device);
    } else {
        confirm(allocation->device, GRANULE);
    }
    return result;
}

void linear_blocks(int index, int change)
{
    __atomic_add_fetch(&process()->blocks[index], (uint32_t)change, __ATOMIC_ACQ_REL);
}

/* No small allocation may be left: the spare block is given back then, as with the last that is freed. */
void linear_context_ended(int index)
{
    if (__atomic_load_n(&process()->blocks[index], __ATOMIC_ACQUIRE) == 0 && take_spare(index))
        discharge(index, GRANULE);
}
