/*
 * Time on a device: contexts take turns in slices, round robin; within a slice the kernels at the heads of the context's
 * queues run together; a kernel that outlasts the slice goes on in the next one, and every timestamp in between runs on.
 */
#include "timeslice.h"

#include <string.h>

static uint64_t draw_slice(struct sim_device *device, const struct sim_settings *settings)
{
    device->random ^= device->random << 13; /* xorshift64: any full-period generator would do */
    device->random ^= device->random >> 7;
    device->random ^= device->random << 17;
    return settings->slice_low_ns + device->random % (settings->slice_high_ns - settings->slice_low_ns + 1);
}

static uint32_t next_runnable(const struct sim_view *view, uint32_t from)
{
    uint32_t first = sim_next_busy(view->device, from);
    uint32_t context = first;
    while (context != SIM_NONE && !sim_runnable(view, context)) {
        context = sim_next_busy(view->device, (context + 1) % SIM_CONTEXTS);
        if (context == first) {
            return SIM_NONE;
        }
    }
    return context;
}

/* Gives the compute engine to the context whose turn it is. A context without work gives way at once. */
static void choose(const struct sim_view *view)
{
    struct sim_device *device = view->device;
    uint32_t current = device->current;
    int keeps = current != SIM_NONE && sim_runnable(view, current);
    if (keeps && device->clock_ns < device->slice_end_ns) {
        return;
    }
    uint32_t from = device->resident == SIM_NONE ? 0 : (device->resident + 1) % SIM_CONTEXTS;
    uint32_t next = next_runnable(view, from);
    device->current = next;
    if (next == SIM_NONE) {
        return;
    }
    device->switch_end_ns = device->clock_ns;
    if (next != device->resident && device->resident != SIM_NONE) {
        device->switch_end_ns += view->node->settings.switch_ns;
    }
    device->slice_end_ns = device->switch_end_ns + draw_slice(device, &view->node->settings);
    device->resident = next;
}

/* Percent of the GPU that the context's running kernels would fill together, at least 100: the divisor of their speed. */
static uint64_t crowd(const struct sim_context *owner)
{
    uint64_t width = 0;
    for (uint32_t left = owner->pending; left != 0; left &= left - 1) {
        const struct sim_channel *queue = &owner->channels[__builtin_ctz(left)];
        const struct sim_op *op = &queue->ops[queue->head % SIM_DEPTH];
        width += op->kind == OP_KERNEL ? op->width : 0;
    }
    return width < 100 ? 100 : width;
}

static int working(const struct sim_device *device)
{
    return device->current != SIM_NONE && device->clock_ns >= device->switch_end_ns;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* When the next thing happens, as far as it is known: the end of a switch, slice, kernel or copy. */
static uint64_t next_moment(const struct sim_device *device, uint64_t limit)
{
    uint64_t next = limit;
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        const struct sim_engine *engine = &device->engines[i];
        if (engine->context != SIM_NONE) {
            const struct sim_channel *queue = &device->contexts[engine->context].channels[engine->channel];
            next = sooner(next, device->clock_ns + queue->ops[queue->head % SIM_DEPTH].left_ps / 1000 + 1);
        }
    }
    if (device->current == SIM_NONE) {
        return next;
    }
    if (!working(device)) {
        return sooner(next, device->switch_end_ns);
    }
    if (device->slice_end_ns > device->clock_ns) { /* a sole context works on past the end of its slice */
        next = sooner(next, device->slice_end_ns);
    }
    const struct sim_context *owner = &device->contexts[device->current];
    uint64_t divisor = crowd(owner);
    for (uint32_t left = owner->pending; left != 0; left &= left - 1) {
        const struct sim_channel *queue = &owner->channels[__builtin_ctz(left)];
        const struct sim_op *op = &queue->ops[queue->head % SIM_DEPTH];
        if (op->kind == OP_KERNEL) {
            uint64_t ps = (uint64_t)((unsigned __int128)op->left_ps * divisor / 100);
            next = sooner(next, device->clock_ns + (ps + 999) / 1000);
        }
    }
    return next;
}

/* Work that the resident context's kernels do in this time; completes those that are done. Returns it in solo ns. */
static uint64_t compute(const struct sim_view *view, uint64_t step_ns)
{
    struct sim_context *owner = &view->device->contexts[view->device->current];
    uint64_t progress = step_ns * 1000 * 100 / crowd(owner);
    uint64_t solo_ps = 0;
    for (uint32_t left = owner->pending; left != 0; left &= left - 1) {
        uint32_t channel = (uint32_t)__builtin_ctz(left);
        struct sim_op *op = &owner->channels[channel].ops[owner->channels[channel].head % SIM_DEPTH];
        if (op->kind != OP_KERNEL) {
            continue;
        }
        uint64_t done = sooner(progress, op->left_ps);
        op->left_ps -= done;
        solo_ps += done;
        if (op->left_ps < 1000) {
            view->truth->contexts[owner->truth].kernels++;
            sim_complete(view->device, view->device->current, channel);
        }
    }
    return solo_ps / 1000;
}

static void copy(struct sim_device *device, uint64_t step_ns)
{
    for (uint32_t i = 0; i < SIM_ENGINES; i++) {
        struct sim_engine *engine = &device->engines[i];
        if (engine->context == SIM_NONE) {
            continue;
        }
        struct sim_context *owner = &device->contexts[engine->context];
        struct sim_channel *queue = &owner->channels[engine->channel];
        struct sim_op *op = &queue->ops[queue->head % SIM_DEPTH];
        op->left_ps -= sooner(step_ns * 1000, op->left_ps);
        if (op->left_ps < 1000) {
            owner->copying &= ~(1U << engine->channel);
            sim_complete(device, engine->context, engine->channel);
            engine->context = SIM_NONE;
        }
    }
}

/* Closes the samples of utilisation that end at or before the device's clock, and adds busy time to the open one. */
static void sample(struct sim_device *device, uint64_t to_ns, int busy)
{
    uint64_t from = device->clock_ns;
    while (from < to_ns) {
        uint64_t end = device->sampled_ns + SIM_SAMPLE_NS;
        uint64_t until = sooner(end, to_ns);
        struct sim_sample *open = &device->samples[device->sample_count % SIM_SAMPLES];
        if (busy) {
            open->busy_ns += until - from;
            open->context_ns[device->current] += until - from;
        }
        if (until == end) {
            open->time_ns = end;
            device->sampled_ns = end;
            device->sample_count++;
            memset(&device->samples[device->sample_count % SIM_SAMPLES], 0, sizeof *open);
        }
        from = until;
    }
}

static void pass(const struct sim_view *view, uint64_t to_ns)
{
    struct sim_device *device = view->device;
    uint64_t from_ns = device->clock_ns;
    int busy = working(device);
    sample(device, to_ns, busy);
    device->clock_ns = to_ns;
    if (busy) {
        struct sim_context *owner = &device->contexts[device->current];
        device->busy_ns += to_ns - from_ns;
        owner->busy_ns += to_ns - from_ns;
        sim_truth_occupied(view->truth, view->index, owner->truth, from_ns, to_ns, compute(view, to_ns - from_ns));
    }
    copy(device, to_ns - from_ns);
}

void sim_advance(const struct sim_view *view, uint64_t now_ns)
{
    struct sim_device *device = view->device;
    for (;;) {
        sim_start_copies(device);
        if (device->current != SIM_NONE && working(device)) {
            sim_settle(view, device->current);
        }
        choose(view);
        if (device->current != SIM_NONE && working(device)) {
            sim_settle(view, device->current);
            if (!sim_runnable(view, device->current)) {
                continue;
            }
        }
        if (device->clock_ns >= now_ns) {
            return;
        }
        pass(view, next_moment(device, now_ns));
    }
}
