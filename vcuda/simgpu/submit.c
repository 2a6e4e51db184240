/* Putting work into the GPU's queues, and waiting for it. */
#include "capture.h"
#include "sim_clock.h"

/* A queue that others hold up is looked at more and more seldom, between these bounds. */
#define LOOK_FIRST_NS 5000ULL
#define LOOK_SELDOM_NS 80000ULL
#define LOOK_LONGEST_NS 5000000ULL

struct sim_op sim_kernel_op(uint64_t solo_ns, uint8_t width)
{
    return (struct sim_op){.kind = OP_KERNEL, .width = width, .solo_ns = solo_ns, .left_ps = solo_ns * 1000};
}

struct sim_op sim_copy_op(uint64_t bytes, int from_device)
{
    uint64_t ns = 1000 + bytes * 1000 / sim_seat.node->settings.copy_bytes_per_us;
    return (struct sim_op){.kind = OP_COPY, .engine = from_device != 0, .solo_ns = ns, .left_ps = ns * 1000};
}

static struct sim_context *shared(const struct sim_view *view, CUcontext context)
{
    return &view->device->contexts[context->index];
}

/* Channels that work queued in this stream now has to wait for: the legacy stream and its blocking streams in turn. */
static uint32_t ahead_of(const struct sim_view *view, CUstream stream)
{
    CUcontext context = stream->context;
    uint32_t own = 1U << stream->channel;
    uint32_t others = 0;
    if (stream == &context->legacy) {
        others = context->blocking;
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
        others = 1U << context->legacy.channel;
    }
    return others & shared(view, context)->pending & ~own;
}

/* Sleeps until the work can be done at the earliest, but looks at the world now and then. */
static void sleep_towards(uint64_t now, uint64_t earliest, uint64_t *pause_ns)
{
    uint64_t soonest = now + *pause_ns;
    uint64_t latest = now + LOOK_LONGEST_NS;
    *pause_ns = *pause_ns * 2 > LOOK_SELDOM_NS ? LOOK_SELDOM_NS : *pause_ns * 2;
    sim_sleep_until(sim_seat.node, earliest < soonest ? soonest : (earliest > latest ? latest : earliest));
}

static uint64_t push_behind(const struct sim_view *view, CUstream stream, const struct sim_op *op, uint32_t ahead)
{
    CUcontext context = stream->context;
    for (; ahead != 0; ahead &= ahead - 1) {
        uint32_t channel = (uint32_t)__builtin_ctz(ahead);
        struct sim_op wait = {
            .kind = OP_WAIT,
            .slot = context->device << 16 | context->index << 4 | channel,
            .target = shared(view, context)->channels[channel].tail,
        };
        sim_push(view->device, context->index, stream->channel, &wait);
    }
    sim_push(view->device, context->index, stream->channel, op);
    sim_advance(view, view->device->clock_ns); /* what takes no time and stands first is done at once */
    return shared(view, context)->channels[stream->channel].tail;
}

CUresult sim_submit(CUstream stream, const struct sim_op *op, uint64_t *position)
{
    CUcontext context = stream->context;
    uint64_t pause_ns = LOOK_FIRST_NS;
    CUresult implicit = sim_capture_implicit(stream);
    if (implicit != CUDA_SUCCESS) {
        return implicit;
    }
    for (;;) {
        struct sim_view view = sim_lock(&sim_seat, context->device);
        if (!context->alive) {
            sim_unlock(&view);
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        }
        uint32_t ahead = ahead_of(&view, stream);
        struct sim_channel *channel = &shared(&view, context)->channels[stream->channel];
        if (sim_channel_room(channel) > (uint64_t)__builtin_popcount(ahead)) {
            uint64_t reached = push_behind(&view, stream, op, ahead);
            sim_unlock(&view);
            if (position != NULL) {
                *position = reached;
            }
            return CUDA_SUCCESS;
        }
        uint64_t earliest = sim_earliest(view.device, context->index, stream->channel, channel->head + 1);
        uint64_t now = view.device->clock_ns;
        sim_unlock(&view);
        sim_poll_flags(context); /* another thread may set the one that the queue waits for */
        sleep_towards(now, earliest, &pause_ns);
    }
}

uint64_t sim_tail(CUcontext context, uint32_t channel)
{
    struct sim_view view = sim_lock(&sim_seat, context->device);
    uint64_t tail = shared(&view, context)->channels[channel].tail;
    sim_unlock(&view);
    return tail;
}

int sim_reached(CUcontext context, uint32_t channel, uint64_t position)
{
    struct sim_view view = sim_lock(&sim_seat, context->device);
    int reached = shared(&view, context)->channels[channel].head >= position;
    sim_unlock(&view);
    return reached;
}

void sim_await(CUcontext context, uint32_t channel, uint64_t position)
{
    uint64_t pause_ns = LOOK_FIRST_NS;
    for (;;) {
        sim_poll_flags(context);
        struct sim_view view = sim_lock(&sim_seat, context->device);
        int reached = shared(&view, context)->channels[channel].head >= position;
        uint64_t earliest = sim_earliest(view.device, context->index, channel, position);
        uint64_t now = view.device->clock_ns;
        sim_unlock(&view);
        if (reached) {
            return;
        }
        sleep_towards(now, earliest, &pause_ns);
    }
}

void sim_await_context(CUcontext context)
{
    struct sim_view view = sim_lock(&sim_seat, context->device);
    uint32_t pending = shared(&view, context)->pending;
    sim_unlock(&view);
    if (pending == 0) {
        return;
    }
    for (uint32_t channel = 0; channel < SIM_CHANNELS; channel++) {
        sim_await(context, channel, sim_tail(context, channel));
    }
}
