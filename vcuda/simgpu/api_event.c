/* Events: their times are the device's, and run on while others have their slices. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "sim_clock.h"

#define LOOK_NS 50000ULL /* between looks whether another process's record has completed */

SIM_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags)
{
    SIM_ENTER(COST_EVENT);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUevent_st *made = event == NULL ? NULL : calloc(1, sizeof *made);
    if (made == NULL) {
        return event == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUevent_st){.context = context, .slot = SIM_NONE, .flags = flags, .device = context->device};
    *event = made;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->slot != SIM_NONE && !event->imported) {
        struct sim_view view = sim_lock(&sim_seat, event->device);
        view.device->events[event->slot].owner = 0;
        view.device->event_next = event->slot < view.device->event_next ? event->slot : view.device->event_next;
        sim_unlock(&view);
    }
    free(event);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventDestroy(CUevent event)
{
    SIM_ENTER(COST_EVENT);
    return destroy(event);
}

SIM_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent event)
{
    SIM_ENTER(COST_EVENT);
    return destroy(event);
}

/* The entry of a destroyed event may still be written by its last record; a fresh generation makes that harmless. */
static CUresult claim_slot(CUevent event)
{
    struct sim_view view = sim_lock(&sim_seat, event->device);
    for (uint32_t i = 0; i < SIM_EVENTS && event->slot == SIM_NONE; i++) {
        uint32_t slot = (view.device->event_next + i) % SIM_EVENTS;
        struct sim_event *entry = &view.device->events[slot];
        if (entry->owner == 0) {
            entry->owner = sim_seat.client + 1;
            event->generation = entry->claims << 32;
            entry->claims++;
            entry->done = event->generation;
            entry->recorded = event->generation;
            event->slot = slot;
            view.device->event_top = slot >= view.device->event_top ? slot + 1 : view.device->event_top;
        }
    }
    if (event->slot != SIM_NONE) {
        view.device->event_next = event->slot + 1;
    }
    sim_unlock(&view);
    return event->slot == SIM_NONE ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* What a record in any process is: the last one counts for all that know the event. */
static CUresult record_shared(CUevent event, CUstream stream)
{
    struct sim_view view = sim_lock(&sim_seat, event->device);
    struct sim_event *entry = &view.device->events[event->slot];
    struct sim_op op = {.kind = OP_RECORD, .slot = event->slot, .target = ++entry->recorded};
    sim_unlock(&view);
    uint64_t position = 0;
    CUresult result = sim_submit(stream, &op, &position);
    view = sim_lock(&sim_seat, event->device);
    entry = &view.device->events[event->slot];
    if (entry->recorded == op.target) {
        entry->source = event->device << 16 | stream->context->index << 4 | stream->channel;
        entry->position = position;
    }
    sim_unlock(&view);
    return result;
}

static CUresult record(CUevent event, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || event == NULL || event->context != stream->context) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    event->capture = sim_capture_of(stream);
    if (event->capture != 0) {
        return CUDA_SUCCESS;
    }
    if (event->slot == SIM_NONE) {
        result = claim_slot(event);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (event->flags & CU_EVENT_INTERPROCESS) {
        return record_shared(event, stream);
    }
    event->generation++;
    event->device = stream->context->device;
    event->index = stream->context->index;
    event->channel = stream->channel;
    struct sim_op op = {.kind = OP_RECORD, .slot = event->slot, .target = event->generation};
    return sim_submit(stream, &op, &event->position);
}

SIM_TWINS(cuEventRecord, _ptsz, COST_EVENT, (CUevent event, CUstream stream), record(event, stream))
SIM_TWINS(cuEventRecordWithFlags, _ptsz, COST_EVENT, (CUevent event, CUstream stream, unsigned int flags),
          ((void)flags, record(event, stream)))

static int done(CUevent event, uint64_t *time_ns)
{
    if (event->slot == SIM_NONE) {
        return 1;
    }
    struct sim_view view = sim_lock(&sim_seat, event->device);
    const struct sim_event *entry = &view.device->events[event->slot];
    int reached = entry->done >= (event->flags & CU_EVENT_INTERPROCESS ? entry->recorded : event->generation);
    if (time_ns != NULL) {
        *time_ns = entry->time_ns;
    }
    sim_unlock(&view);
    return reached;
}

/* A capture in global mode forbids it, and so does an event that belongs to a capture. */
static CUresult usable(CUevent event)
{
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->capture != 0) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return sim_capture_forbids() ? sim_capture_spoil(NULL) : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventQuery(CUevent event)
{
    SIM_ENTER(COST_EVENT);
    CUresult result = usable(event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    sim_poll_flags(event->context);
    return done(event, NULL) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static void await_shared(CUevent event)
{
    uint64_t now = 0;
    while (!done(event, NULL)) {
        sim_poll_flags(event->context);
        struct sim_view view = sim_lock(&sim_seat, event->device);
        now = view.device->clock_ns;
        sim_unlock(&view);
        sim_sleep_until(sim_seat.node, now + LOOK_NS);
    }
}

SIM_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    SIM_ENTER(COST_SYNC);
    CUresult result = usable(event);
    if (result == CUDA_SUCCESS && (event->flags & CU_EVENT_INTERPROCESS)) {
        await_shared(event);
    } else if (result == CUDA_SUCCESS && event->slot != SIM_NONE && !done(event, NULL)) {
        sim_await(event->context, event->channel, event->position);
        result = sim_has_failed() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
    }
    return result;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    if (milliseconds == NULL || start == NULL || end == NULL || start->slot == SIM_NONE || end->slot == SIM_NONE ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    uint64_t from = 0;
    uint64_t to = 0;
    if (!done(start, &from) || !done(end, &to)) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = (float)((double)((int64_t)(to - from)) * sim_seat.node->settings.clock_ppm / 1e12);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    SIM_ENTER(COST_EVENT);
    return elapsed(milliseconds, start, end);
}

SIM_EXPORT CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    SIM_ENTER(COST_EVENT);
    return elapsed(milliseconds, start, end);
}

/* What a 64-byte handle says: an entry of a device, and which of its uses. */
struct ticket {
    uint32_t device;
    uint32_t slot;
    uint64_t claims;
};

SIM_EXPORT CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    SIM_ENTER(COST_EVENT);
    if (handle == NULL || event == NULL || !(event->flags & CU_EVENT_INTERPROCESS) || event->imported) {
        return handle == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = event->slot == SIM_NONE ? claim_slot(event) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_view view = sim_lock(&sim_seat, event->device);
    struct ticket ticket = {event->device, event->slot, view.device->events[event->slot].claims};
    sim_unlock(&view);
    memset(handle, 0, sizeof *handle);
    memcpy(handle->reserved, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    SIM_ENTER(COST_EVENT);
    CUcontext context = NULL;
    struct ticket ticket;
    memcpy(&ticket, handle.reserved, sizeof ticket);
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS || event == NULL || ticket.claims == 0 || ticket.slot >= SIM_EVENTS ||
        ticket.device != context->device) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_view view = sim_lock(&sim_seat, ticket.device);
    const struct sim_event *entry = &view.device->events[ticket.slot];
    int there = entry->owner != 0 && entry->claims == ticket.claims;
    sim_unlock(&view);
    struct CUevent_st *made = there ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        return there ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_MAP_FAILED;
    }
    *made = (struct CUevent_st){.context = context,
                                .slot = ticket.slot,
                                .flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
                                .device = ticket.device,
                                .imported = 1};
    *event = made;
    return CUDA_SUCCESS;
}
