#include "memory/multicast.h"

#include <stdlib.h>

#include "hooks/hook.h"
#include "memory/physical.h"

/* Without room for it, the memory stays charged until the process ends. */
static void note(const struct binding *binding)
{
    struct multicast *ours = &process()->multicast;
    pthread_mutex_lock(&ours->lock);
    if (ours->count == ours->room) {
        size_t room = ours->room != 0 ? 2 * ours->room : 64;
        struct binding *grown = realloc(ours->rows, room * sizeof *grown);
        if (grown != NULL) {
            ours->rows = grown;
            ours->room = room;
        }
    }
    if (ours->count < ours->room)
        ours->rows[ours->count++] = *binding;
    pthread_mutex_unlock(&ours->lock);
}

void multicast_bound(const struct binding *binding)
{
    struct allocation physical;
    if (allocations_count(&process()->allocations, KIND_PHYSICAL, binding->physical, 1, &physical) > 0)
        note(binding);
}

/* Takes one of the object's bindings: on this device (-1: any) that begins at the offset, or any (`at` NULL). */
static bool take(CUmemGenericAllocationHandle object, CUdevice ordinal, const uint64_t *at, struct binding *found)
{
    struct multicast *ours = &process()->multicast;
    bool there = false;
    pthread_mutex_lock(&ours->lock);
    for (size_t i = 0; i < ours->count && !there; i++) {
        struct binding *row = &ours->rows[i];
        there = row->object == object && (at == NULL || (row->offset == *at && row->ordinal == ordinal));
        if (there) {
            *found = *row;
            *row = ours->rows[--ours->count];
        }
    }
    pthread_mutex_unlock(&ours->lock);
    return there;
}

static CUresult unbind(const struct binding *binding)
{
    struct allocation physical;
    bool ours = physical_dropping(binding->physical, &physical);
    CUresult result = REAL(cuMulticastUnbind)(binding->object, binding->ordinal, binding->offset, binding->size);
    physical_dropped(result, ours, &physical);
    return result;
}

CUresult multicast_unbind(CUmemGenericAllocationHandle object, CUdevice ordinal, uint64_t *offset, uint64_t *size)
{
    struct binding binding;
    while (*size != 0 && take(object, ordinal, offset, &binding)) {
        CUresult result = unbind(&binding);
        if (result != CUDA_SUCCESS) {
            note(&binding);
            return result;
        }
        uint64_t done = binding.size < *size ? binding.size : *size;
        *offset += done;
        *size -= done;
    }
    return CUDA_SUCCESS;
}

void multicast_ends(CUmemGenericAllocationHandle object, bool elsewhere)
{
    struct binding binding;
    while (take(object, -1, NULL, &binding)) {
        struct allocation physical;
        if (!elsewhere) {
            unbind(&binding);
            continue;
        }
        shared_with_others(KIND_PHYSICAL, binding.physical);
        bool ours = physical_dropping(binding.physical, &physical);
        physical_dropped(CUDA_SUCCESS, ours, &physical);
    }
}
