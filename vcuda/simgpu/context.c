/* Contexts: a stack per thread, one primary context per device, and what each costs on the device. */
#include <stdlib.h>
#include <string.h>

#include "sim_clock.h"
#include "context.h"

enum { STACK = 32, MAGIC = 0x43545831 };

static __thread CUcontext stack[STACK];
static __thread int depth;
static struct CUctx_st *primaries[SIM_DEVICES]; /* guarded by sim_process_lock */

CUcontext sim_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

CUresult sim_context_get(CUcontext *context)
{
    *context = sim_current();
    if (*context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static uint32_t claim(const struct sim_view *view, uint64_t bytes)
{
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        struct sim_context *entry = &view->device->contexts[i];
        if (entry->used) {
            continue;
        }
        const struct sim_client *client = &view->node->clients[sim_seat.client];
        entry->client = sim_seat.client;
        entry->truth = sim_truth_open_context(view->truth, view->index, client->pid, client->group, view->device->clock_ns);
        entry->busy_ns = 0;
        entry->bytes = bytes;
        sim_truth_memory(view->truth, view->index, entry->truth, (int64_t)bytes);
        entry->used = 1;
        view->device->used_bytes += bytes;
        return i;
    }
    return SIM_NONE;
}

static CUresult create(uint32_t device, unsigned int flags, uint64_t bytes, CUcontext *context)
{
    struct CUctx_st *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->limits[CU_LIMIT_STACK_SIZE] = SIM_STACK_BYTES;
    }
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_view view = sim_lock(&sim_seat, device);
    uint64_t left = sim_seat.node->settings.memory_bytes - view.device->used_bytes;
    uint32_t index = left >= bytes ? claim(&view, bytes) : SIM_NONE;
    sim_unlock(&view);
    if (index == SIM_NONE) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    static uint64_t lives; /* atomic */
    *made = (struct CUctx_st){
        .life = __atomic_add_fetch(&lives, 1, __ATOMIC_RELAXED), .magic = MAGIC, .device = device, .index = index, .flags = flags, .next_channel = 2, .blocking = 2, .alive = 1};
    made->legacy = (struct CUstream_st){.context = made, .channel = 0, .id = 1};
    for (uint32_t i = 0; i < SIM_OWN; i++) {
        uint32_t channel = i == 0 ? 1 : SIM_CHANNELS - i;
        made->per_thread[i] = (struct CUstream_st){.context = made, .channel = channel, .id = 2};
    }
    *context = made;
    return CUDA_SUCCESS;
}

/* The structure stays: other threads may still have the context on their stacks, and their calls must fail. */
static CUresult destroy(CUcontext context)
{
    if (context == NULL || context->magic != MAGIC) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!context->alive) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    sim_await_context(context);
    sim_forget_allocations(context);
    struct sim_view view = sim_lock(&sim_seat, context->device);
    context->alive = 0;
    sim_context_release(&view, context->index);
    sim_unlock(&view);
    return CUDA_SUCCESS;
}

CUresult sim_context_create(CUcontext *context, unsigned int flags, CUdevice device)
{
    if (context == NULL || device < 0 || (uint32_t)device >= sim_seat.node->settings.devices) {
        return context == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_DEVICE;
    }
    if (depth == STACK) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = create((uint32_t)device, flags, sim_seat.node->settings.context_bytes, context);
    if (result == CUDA_SUCCESS) {
        stack[depth++] = *context;
    }
    return result;
}

CUresult sim_context_part(CUcontext *context, CUcontext primary)
{
    CUresult result = create(primary->device, 0, 0, context);
    if (result == CUDA_SUCCESS) {
        (*context)->part = 1;
        (*context)->whole = primary;
    }
    return result;
}

enum { PARTS_ARE_SHARED_FROM = 13000 };

static CUresult hold(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    if (!context->part || sim_seat.node->settings.driver_version >= PARTS_ARE_SHARED_FROM) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&sim_process_lock);
    if (context->holders != 0 && context->holder != stack) {
        result = CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
    } else {
        context->holders++;
        context->holder = stack;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static void drop_holder(CUcontext context)
{
    if (context->part) {
        pthread_mutex_lock(&sim_process_lock);
        context->holders -= context->holders != 0;
        pthread_mutex_unlock(&sim_process_lock);
    }
}

CUresult sim_context_attach(CUcontext *context)
{
    CUresult result = context == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_get(context);
    if (result == CUDA_SUCCESS) {
        __atomic_add_fetch(&(*context)->references, 1, __ATOMIC_RELAXED);
    }
    return result;
}

CUresult sim_context_detach(CUcontext context)
{
    if (context == NULL || context->magic != MAGIC || context->references == 0) {
        return sim_context_destroy(context);
    }
    __atomic_sub_fetch(&context->references, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

CUresult sim_context_destroy(CUcontext context)
{
    int primary = context != NULL && context->magic == MAGIC && context->primary;
    CUresult result = primary ? CUDA_ERROR_INVALID_CONTEXT : destroy(context);
    if (result == CUDA_SUCCESS && depth > 0 && stack[depth - 1] == context) {
        depth--;
    }
    return result;
}

CUresult sim_context_push(CUcontext context)
{
    if (context == NULL || context->magic != MAGIC || depth == STACK) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult result = hold(context);
    if (result == CUDA_SUCCESS) {
        stack[depth++] = context;
    }
    return result;
}

CUresult sim_context_pop(CUcontext *context)
{
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    drop_holder(stack[depth]);
    if (context != NULL) {
        *context = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult sim_context_set(CUcontext context)
{
    if (context == NULL) {
        if (depth > 0) {
            drop_holder(stack[--depth]);
        }
        return CUDA_SUCCESS;
    }
    if (context->magic != MAGIC) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    CUresult result = hold(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (depth > 0) {
        drop_holder(stack[depth - 1]);
    }
    depth = depth > 0 ? depth : 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

/* The primary context's handle stays the same over its lives. */
CUresult sim_primary_get(uint32_t device, CUcontext *context)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_lock);
    struct CUctx_st *kept = primaries[device];
    if (kept == NULL || !kept->alive) {
        CUcontext fresh = NULL;
        result = create(device, kept == NULL ? 0 : kept->flags, sim_seat.node->settings.context_bytes, &fresh);
        if (result == CUDA_SUCCESS && kept != NULL) {
            fresh->references = kept->references; /* a reset ends the context and takes no retain away */
            *kept = *fresh;
            kept->legacy.context = kept;
            for (uint32_t i = 0; i < SIM_OWN; i++) {
                kept->per_thread[i].context = kept;
            }
            free(fresh);
        } else if (result == CUDA_SUCCESS) {
            primaries[device] = fresh;
        }
    }
    if (result == CUDA_SUCCESS) {
        primaries[device]->primary = 1;
        primaries[device]->references++;
        *context = primaries[device];
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

/* Drops one reference, of which the last ends the context; or ends it for a reset, which drops none. */
CUresult sim_primary_drop(uint32_t device, int reset)
{
    CUcontext ending = NULL;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_process_lock);
    CUcontext kept = primaries[device];
    if (kept == NULL || (kept->references == 0 && !reset)) {
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else {
        kept->references -= reset ? 0 : 1;
        ending = kept->alive && (reset || kept->references == 0) ? kept : NULL;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return ending != NULL ? destroy(ending) : result;
}

CUresult sim_primary_state(uint32_t device, unsigned int *flags, int *active)
{
    pthread_mutex_lock(&sim_process_lock);
    CUcontext kept = primaries[device];
    *flags = kept == NULL ? 0 : kept->flags;
    *active = kept != NULL && kept->alive;
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}
