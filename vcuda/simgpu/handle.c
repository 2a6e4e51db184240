#include "handle.h"

/* The truth's record for memory of this process that no context holds, per device; guarded by the device's lock. */
static uint32_t records[SIM_DEVICES];
static int recorded[SIM_DEVICES];

static uint32_t record_of(const struct sim_view *view)
{
    if (!recorded[view->index]) {
        const struct sim_client *client = &view->node->clients[sim_seat.client];
        records[view->index] =
            sim_truth_open_context(view->truth, view->index, client->pid, client->group, view->device->clock_ns);
        recorded[view->index] = 1;
    }
    return records[view->index];
}

static struct sim_handle *find(const struct sim_view *view, struct sim_physical physical)
{
    if (physical.index >= SIM_HANDLES) {
        return NULL;
    }
    struct sim_handle *entry = &view->device->handles[physical.index];
    return entry->used && entry->serial == physical.serial ? entry : NULL;
}

static CUresult enter(const struct sim_view *view, uint64_t bytes, struct sim_physical *made)
{
    for (uint32_t i = 0; i < SIM_HANDLES; i++) {
        struct sim_handle *entry = &view->device->handles[i];
        if (entry->used) {
            continue;
        }
        entry->serial++;
        entry->truth = record_of(view);
        entry->payer = sim_seat.client;
        entry->exported = 0;
        entry->bytes = bytes;
        entry->refs[sim_seat.client] = 1;
        sim_truth_memory(view->truth, view->index, entry->truth, (int64_t)bytes);
        entry->used = 1;
        view->device->handle_top = i >= view->device->handle_top ? i + 1 : view->device->handle_top;
        view->device->used_bytes += bytes;
        *made = (struct sim_physical){.device = view->index, .index = i, .serial = entry->serial};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_physical_make(uint32_t device, uint64_t bytes, struct sim_physical *made)
{
    struct sim_view view = sim_lock(&sim_seat, device);
    uint64_t left = sim_seat.node->settings.memory_bytes - view.device->used_bytes;
    CUresult result = bytes > left ? CUDA_ERROR_OUT_OF_MEMORY : enter(&view, bytes, made);
    sim_unlock(&view);
    return result;
}

CUresult sim_physical_split(CUcontext context, uint64_t bytes, struct sim_physical *made)
{
    struct sim_view view = sim_lock(&sim_seat, context->device);
    struct sim_context *owner = &view.device->contexts[context->index];
    owner->bytes -= bytes;
    view.device->used_bytes -= bytes;
    sim_truth_memory(view.truth, view.index, owner->truth, -(int64_t)bytes);
    CUresult result = enter(&view, bytes, made);
    if (result != CUDA_SUCCESS) {
        owner->bytes += bytes;
        view.device->used_bytes += bytes;
        sim_truth_memory(view.truth, view.index, owner->truth, (int64_t)bytes);
    }
    sim_unlock(&view);
    return result;
}

CUresult sim_physical_ref(struct sim_physical physical, int change, uint64_t *bytes)
{
    if (physical.device >= sim_seat.node->settings.devices) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_view view = sim_lock(&sim_seat, physical.device);
    struct sim_handle *entry = find(&view, physical);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (entry != NULL && entry->refs[sim_seat.client] + change >= 0) {
        entry->refs[sim_seat.client] = (uint16_t)(entry->refs[sim_seat.client] + change);
        if (bytes != NULL) {
            *bytes = entry->bytes;
        }
        if (change < 0) {
            sim_handle_settle(&sim_seat, &view, physical.index);
        }
        result = CUDA_SUCCESS;
    }
    sim_unlock(&view);
    return result;
}

void sim_physical_exported(struct sim_physical physical)
{
    struct sim_view view = sim_lock(&sim_seat, physical.device);
    struct sim_handle *entry = find(&view, physical);
    if (entry != NULL) {
        entry->exported = 1;
        view.device->exports++;
    }
    sim_unlock(&view);
}
