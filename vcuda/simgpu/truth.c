#include "truth.h"

#include <stdio.h>
#include <string.h>

/* A slice is cut after this long, so that windows can be cut out of an undisturbed run. */
#define LONGEST_SLICE_NS 1000000ULL

uint32_t sim_truth_group(struct sim_truth *truth, const char *label)
{
    for (uint32_t i = 0; i < truth->group_count; i++) {
        if (strncmp(truth->groups[i].label, label, SIM_LABEL - 1) == 0) {
            return i;
        }
    }
    if (truth->group_count == SIM_TRUTH_GROUPS) {
        return SIM_TRUTH_GROUPS - 1;
    }
    uint32_t group = truth->group_count;
    snprintf(truth->groups[group].label, SIM_LABEL, "%s", label);
    truth->group_count = group + 1;
    return group;
}

uint32_t sim_truth_open_context(struct sim_truth *truth, uint32_t device, uint32_t pid, uint32_t group, uint64_t now_ns)
{
    uint64_t count = __atomic_fetch_add(&truth->context_count, 1, __ATOMIC_ACQ_REL); /* every device counts on it */
    uint32_t index = (uint32_t)(count % SIM_TRUTH_CONTEXTS);
    truth->contexts[index] =
        (struct sim_truth_context){.pid = pid, .group = group, .device = device, .begin_ns = now_ns};
    return index;
}

void sim_truth_occupied(struct sim_truth *truth, uint32_t device, uint32_t context, uint64_t from_ns, uint64_t to_ns,
                        uint64_t solo_ns)
{
    truth->contexts[context].occupied_ns += to_ns - from_ns;
    truth->contexts[context].solo_ns += solo_ns;
    struct sim_truth_device *log = &truth->devices[device];
    if (log->slice_count > 0) {
        struct sim_truth_slice *last = &log->slices[(log->slice_count - 1) % SIM_TRUTH_SLICES];
        if (last->context == context && last->end_ns == from_ns && to_ns - last->begin_ns <= LONGEST_SLICE_NS) {
            last->solo_ns += solo_ns;
            last->end_ns = to_ns;
            return;
        }
    }
    log->slices[log->slice_count % SIM_TRUTH_SLICES] =
        (struct sim_truth_slice){.begin_ns = from_ns, .end_ns = to_ns, .solo_ns = solo_ns, .context = context};
    log->slice_count++;
}

static uint64_t shifted(uint64_t bytes, int64_t change)
{
    return change < 0 && (uint64_t)-change > bytes ? 0 : bytes + (uint64_t)change;
}

void sim_truth_memory(struct sim_truth *truth, uint32_t device, uint32_t context, int64_t change)
{
    struct sim_truth_context *record = &truth->contexts[context];
    struct sim_truth_group *group = &truth->groups[record->group];
    record->bytes = shifted(record->bytes, change);
    group->bytes[device] = shifted(group->bytes[device], change);
    if (record->bytes > record->peak_bytes) {
        record->peak_bytes = record->bytes;
    }
    if (group->bytes[device] > group->peak_bytes[device]) {
        group->peak_bytes[device] = group->bytes[device];
    }
}
