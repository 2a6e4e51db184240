/* Streams. */
#include <stdlib.h>

#include "capture.h"
#include "pool.h"

static unsigned long long next_id = 3; /* atomic; 1 and 2 are the default streams */

CUstream sim_per_thread(CUstream handle)
{
    return handle == NULL ? CU_STREAM_PER_THREAD : handle;
}

/* This thread's own default stream; from its first use on, what is queued in the legacy stream waits for it. */
static CUstream own_of(CUcontext context)
{
    static uint32_t threads; /* atomic */
    static __thread uint32_t number;
    if (number == 0) {
        number = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
    }
    CUstream own = &context->per_thread[(number - 1) % SIM_OWN];
    uint32_t bit = 1U << own->channel;
    if ((__atomic_load_n(&context->blocking, __ATOMIC_RELAXED) & bit) == 0) {
        pthread_mutex_lock(&sim_process_lock);
        context->blocking |= bit;
        pthread_mutex_unlock(&sim_process_lock);
    }
    return own;
}

CUresult sim_stream_get(CUstream handle, CUstream *stream)
{
    if (handle != NULL && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        *stream = handle;
        return handle->context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result == CUDA_SUCCESS) {
        *stream = handle == CU_STREAM_PER_THREAD ? own_of(context) : &context->legacy;
    }
    return result;
}

/* The last queue of which streams are given one: as many as CUDA_DEVICE_MAX_CONNECTIONS says, behind the default streams'. */
static uint32_t last_channel(void)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int count = connections != NULL ? atoi(connections) : 0;
    return count > 0 && count < SIM_CHANNELS - 2 ? (uint32_t)count + 1 : SIM_CHANNELS - 1;
}

static CUresult create(CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUstream_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&sim_process_lock);
    uint32_t channel = context->next_channel;
    context->next_channel = channel == last_channel() ? 2 : channel + 1;
    if (!(flags & CU_STREAM_NON_BLOCKING)) {
        context->blocking |= 1U << channel;
    }
    pthread_mutex_unlock(&sim_process_lock);
    *made = (struct CUstream_st){.context = context, .channel = channel, .flags = flags, .priority = priority};
    made->id = __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED);
    *stream = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags)
{
    SIM_ENTER(COST_VIRTUAL);
    return create(stream, flags, 0);
}

SIM_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    SIM_ENTER(COST_VIRTUAL);
    return create(stream, flags, priority);
}

/* What is queued runs on; a stream being captured gives its capture up. */
static CUresult destroy(CUstream stream)
{
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_capture_forget(stream);
    free(stream);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    SIM_ENTER(COST_MEMORY);
    return destroy(stream);
}

SIM_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
    SIM_ENTER(COST_MEMORY);
    return destroy(stream);
}

static CUresult synchronise(CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_capturing(stream) || sim_capture_forbids()) {
        return sim_capture_spoil(stream);
    }
    sim_await(stream->context, stream->channel, sim_tail(stream->context, stream->channel));
    sim_pools_release();
    return sim_has_failed() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

static CUresult query(CUstream handle)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_capturing(stream) || sim_capture_forbids()) {
        return sim_capture_spoil(stream);
    }
    sim_poll_flags(stream->context);
    uint64_t tail = sim_tail(stream->context, stream->channel);
    return sim_reached(stream->context, stream->channel, tail) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult wait_event(CUstream handle, CUevent event)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS || event == NULL) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->capture != 0) {
        return sim_capture_join(stream, event);
    }
    if (event->slot == SIM_NONE) {
        return CUDA_SUCCESS;
    }
    if (event->flags & CU_EVENT_INTERPROCESS) {
        struct sim_view view = sim_lock(&sim_seat, event->device);
        const struct sim_event *entry = &view.device->events[event->slot];
        int over = entry->done >= entry->recorded;
        struct sim_op last = {.kind = OP_WAIT, .slot = entry->source, .target = entry->position};
        sim_unlock(&view);
        return over ? CUDA_SUCCESS : sim_submit(stream, &last, NULL);
    }
    struct sim_op op = {
        .kind = OP_WAIT, .slot = event->device << 16 | event->index << 4 | event->channel, .target = event->position};
    return sim_capturing(stream) ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : sim_submit(stream, &op, NULL);
}

SIM_TWINS(cuStreamSynchronize, _ptsz, COST_SYNC, (CUstream stream), synchronise(stream))
SIM_TWINS(cuStreamQuery, _ptsz, COST_EVENT, (CUstream stream), query(stream))
SIM_TWINS(cuStreamWaitEvent, _ptsz, COST_EVENT, (CUstream stream, CUevent event, unsigned int flags),
          ((void)flags, wait_event(stream, event)))

static CUresult get(CUstream handle, unsigned int *flags, int *priority, CUcontext *context, unsigned long long *id)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != NULL) {
        *flags = stream->flags;
    }
    if (priority != NULL) {
        *priority = stream->priority;
    }
    if (context != NULL) {
        *context = stream->context;
    }
    if (id != NULL) {
        *id = stream->id;
    }
    return CUDA_SUCCESS;
}

SIM_TWINS(cuStreamGetFlags, _ptsz, COST_QUERY, (CUstream stream, unsigned int *flags), get(stream, flags, NULL, NULL, NULL))
SIM_TWINS(cuStreamGetPriority, _ptsz, COST_QUERY, (CUstream stream, int *priority), get(stream, NULL, priority, NULL, NULL))
SIM_TWINS(cuStreamGetCtx, _ptsz, COST_QUERY, (CUstream stream, CUcontext *context), get(stream, NULL, NULL, context, NULL))
SIM_TWINS(cuStreamGetId, _ptsz, COST_QUERY, (CUstream stream, unsigned long long *id), get(stream, NULL, NULL, NULL, id))
