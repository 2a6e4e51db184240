/* Queues and what stands at their heads. */
#include <string.h>

#include "timeslice.h"

static struct sim_op *head_of(struct sim_channel *channel)
{
    return &channel->ops[channel->head % SIM_DEPTH];
}

uint64_t sim_channel_room(const struct sim_channel *channel)
{
    return SIM_DEPTH - (channel->tail - channel->head);
}

void sim_push(struct sim_device *device, uint32_t context, uint32_t channel, const struct sim_op *op)
{
    struct sim_context *owner = &device->contexts[context];
    struct sim_channel *queue = &owner->channels[channel];
    queue->ops[queue->tail % SIM_DEPTH] = *op;
    queue->tail++;
    owner->pending |= 1U << channel;
    device->busy[context / 64] |= 1ULL << (context % 64);
}

void sim_complete(struct sim_device *device, uint32_t context, uint32_t channel)
{
    struct sim_context *owner = &device->contexts[context];
    struct sim_channel *queue = &owner->channels[channel];
    queue->head++;
    if (queue->head == queue->tail) {
        owner->pending &= ~(1U << channel);
        if (owner->pending == 0) {
            device->busy[context / 64] &= ~(1ULL << (context % 64));
        }
    }
}

void sim_drop(struct sim_device *device, uint32_t context)
{
    struct sim_context *owner = &device->contexts[context];
    for (uint32_t i = 0; i < SIM_CHANNELS; i++) {
        owner->channels[i].head = owner->channels[i].tail;
    }
    owner->pending = 0;
    owner->copying = 0;
    device->busy[context / 64] &= ~(1ULL << (context % 64));
    for (int i = 0; i < SIM_ENGINES; i++) {
        if (device->engines[i].context == context) {
            device->engines[i].context = SIM_NONE;
        }
    }
}

/* Other devices are read without their lock: their heads only grow, so a stale one delays and never errs. */
static int wait_over(const struct sim_node *node, const struct sim_op *op)
{
    const struct sim_device *device = &node->devices[(op->slot >> 16) % SIM_DEVICES];
    const struct sim_channel *channel = &device->contexts[(op->slot >> 4) % SIM_CONTEXTS].channels[op->slot % SIM_CHANNELS];
    return __atomic_load_n(&channel->head, __ATOMIC_ACQUIRE) >= op->target;
}

static int meeting_over(const struct sim_node *node, const struct sim_op *op)
{
    return __atomic_load_n(&node->meetings[op->slot % SIM_MEETINGS], __ATOMIC_ACQUIRE) >= op->target;
}

/* The first to arrive of each group of n needs arrival n, and so do the others of that group. */
static void arrive(struct sim_node *node, struct sim_op *op)
{
    uint64_t members = op->target;
    uint64_t before = __atomic_fetch_add(&node->meetings[op->slot % SIM_MEETINGS], 1, __ATOMIC_ACQ_REL);
    op->target = (before / members + 1) * members;
    op->started = 1;
}

/* True when the operation at the head is over without work; records its effects. */
static int settled(const struct sim_view *view, struct sim_op *op)
{
    switch (op->kind) {
    case OP_RECORD: {
        struct sim_event *event = &view->device->events[op->slot % SIM_EVENTS];
        if (op->target > event->done) { /* else the event was destroyed, and its entry belongs to another */
            event->time_ns = view->device->clock_ns;
            event->done = op->target;
        }
        return 1;
    }
    case OP_WAIT:
        return wait_over(view->node, op);
    case OP_HOST:
    case OP_FLAG:
        return op->started; /* set by the owner's process: sim_host_done */
    case OP_FAULT:
        return 1;
    case OP_MEET:
        if (!op->started) {
            arrive(view->node, op);
        }
        return meeting_over(view->node, op);
    default:
        return 0;
    }
}

void sim_settle(const struct sim_view *view, uint32_t context)
{
    struct sim_context *owner = &view->device->contexts[context];
    int again = 1;
    while (again) { /* one queue's progress can free another that waits for it */
        again = 0;
        for (uint32_t left = owner->pending; left != 0; left &= left - 1) {
            uint32_t channel = (uint32_t)__builtin_ctz(left);
            struct sim_channel *queue = &owner->channels[channel];
            while (queue->head != queue->tail && settled(view, head_of(queue))) {
                if (head_of(queue)->kind == OP_FAULT) {
                    __atomic_store_n(&view->node->clients[owner->client].fault, 1, __ATOMIC_RELEASE);
                }
                sim_complete(view->device, context, channel);
                again = 1;
            }
        }
    }
}

int sim_runnable(const struct sim_view *view, uint32_t context)
{
    struct sim_context *owner = &view->device->contexts[context];
    for (uint32_t left = owner->pending; left != 0; left &= left - 1) {
        const struct sim_op *op = head_of(&owner->channels[__builtin_ctz(left)]);
        int idle = op->kind == OP_COPY || (op->kind == OP_WAIT && !wait_over(view->node, op)) ||
                   (op->kind == OP_HOST && !op->started);
        if (!idle) {
            return 1;
        }
    }
    return 0;
}

static int take_copy(struct sim_device *device, uint32_t number, uint32_t context)
{
    struct sim_context *owner = &device->contexts[context];
    for (uint32_t left = owner->pending & ~owner->copying; left != 0; left &= left - 1) {
        uint32_t channel = (uint32_t)__builtin_ctz(left);
        const struct sim_op *op = head_of(&owner->channels[channel]);
        if (op->kind == OP_COPY && op->engine == number) {
            owner->copying |= 1U << channel;
            device->engines[number] =
                (struct sim_engine){.context = context, .channel = channel, .next = (context + 1) % SIM_CONTEXTS};
            return 1;
        }
    }
    return 0;
}

uint32_t sim_next_busy(const struct sim_device *device, uint32_t from)
{
    for (uint32_t i = 0; i <= SIM_CONTEXTS / 64; i++) {
        uint32_t word = (from / 64 + i) % (SIM_CONTEXTS / 64);
        uint64_t bits = device->busy[word];
        if (i == 0) {
            bits &= ~0ULL << (from % 64);
        } else if (i == SIM_CONTEXTS / 64) {
            bits &= ~(~0ULL << (from % 64));
        }
        if (bits != 0) {
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
        }
    }
    return SIM_NONE;
}

void sim_start_copies(struct sim_device *device)
{
    for (uint32_t number = 0; number < SIM_ENGINES; number++) {
        if (device->engines[number].context != SIM_NONE) {
            continue;
        }
        uint32_t first = sim_next_busy(device, device->engines[number].next);
        uint32_t context = first;
        while (context != SIM_NONE && !take_copy(device, number, context)) {
            context = sim_next_busy(device, (context + 1) % SIM_CONTEXTS);
            if (context == first) {
                break;
            }
        }
    }
}

uint64_t sim_earliest(const struct sim_device *device, uint32_t context, uint32_t channel, uint64_t position)
{
    const struct sim_channel *queue = &device->contexts[context].channels[channel];
    uint64_t ps = 0;
    for (uint64_t i = queue->head; i < position && i < queue->tail; i++) {
        ps += queue->ops[i % SIM_DEPTH].left_ps;
    }
    return device->clock_ns + ps / 1000;
}
