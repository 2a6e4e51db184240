/* Events: their times are the device's, and run on while others have their slices. */
#include <stdlib.h>

#include "capture.h"

SIM_EXPORT CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags)
{
    SIM_ENTER(COST_EVENT);
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
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
    if (event->slot != SIM_NONE) {
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

static CUresult record(CUevent event, CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || event == NULL || event->context != stream->context) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    if (sim_capturing(stream)) {
        event->capture = stream->capture;
        return CUDA_SUCCESS;
    }
    event->capture = NULL;
    if (event->slot == SIM_NONE) {
        result = claim_slot(event);
    }
    if (result != CUDA_SUCCESS) {
        return result;
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
    int reached = entry->done >= event->generation;
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
    if (event->capture != NULL) {
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

SIM_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    SIM_ENTER(COST_SYNC);
    CUresult result = usable(event);
    if (result == CUDA_SUCCESS && event->slot != SIM_NONE && !done(event, NULL)) {
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
