/* The passing of time on a device, on a clock that the tests move. */
#include "check.h"

#include <sys/mman.h>

#include "timeslice.h"

#define MS 1000000ULL

static struct sim_node *node;
static struct sim_truth *truth;
static struct sim_view view;

/* Mapped, not filled: a node is large and mostly never touched. */
static void *zeros(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void fresh_device(uint64_t slice_ns, uint64_t switch_ns)
{
    if (node != NULL) {
        munmap(node, sizeof *node);
        munmap(truth, sizeof *truth);
    }
    node = zeros(sizeof *node);
    truth = zeros(sizeof *truth);
    node->settings.slice_low_ns = slice_ns;
    node->settings.slice_high_ns = slice_ns;
    node->settings.switch_ns = switch_ns;
    view = (struct sim_view){.node = node, .truth = truth, .device = &node->devices[0]};
    view.device->current = SIM_NONE;
    view.device->resident = SIM_NONE;
    view.device->random = 1;
    for (int i = 0; i < SIM_ENGINES; i++) {
        view.device->engines[i].context = SIM_NONE;
    }
    for (uint32_t i = 0; i < 4; i++) {
        view.device->contexts[i].used = 1;
        view.device->contexts[i].truth = i;
    }
}

static void queue_kernels(uint32_t context, uint32_t channel, unsigned count, uint64_t ns, uint8_t width)
{
    struct sim_op op = {.kind = OP_KERNEL, .width = width, .solo_ns = ns, .left_ps = ns * 1000};
    for (unsigned i = 0; i < count; i++) {
        sim_push(view.device, context, channel, &op);
    }
}

static void queue_record(uint32_t context, uint32_t channel, uint32_t event)
{
    struct sim_op op = {.kind = OP_RECORD, .slot = event, .target = view.device->events[event].done + 1};
    sim_push(view.device, context, channel, &op);
}

static uint64_t event_ns(uint32_t event)
{
    CHECK(view.device->events[event].done != 0);
    return view.device->events[event].time_ns;
}

static void contexts_with_work_queued_share_the_time_evenly(void)
{
    fresh_device(1 * MS, 0);
    queue_kernels(0, 0, 1000, MS / 10, 100);
    queue_kernels(1, 0, 20, 5 * MS, 100);
    sim_advance(&view, 100 * MS);
    CHECK(truth->contexts[0].occupied_ns == 50 * MS);
    CHECK(truth->contexts[1].occupied_ns == 50 * MS);
    CHECK(truth->contexts[0].solo_ns == 50 * MS);
    CHECK(truth->contexts[0].kernels == 500);
    CHECK(truth->contexts[1].kernels == 10);
}

static void it_does_not_matter_how_often_the_device_is_looked_at(void)
{
    uint64_t seldom[2];
    fresh_device(1 * MS, 50000);
    queue_kernels(0, 0, 30, 700000, 100);
    queue_kernels(1, 0, 7, 3 * MS, 100);
    sim_advance(&view, 25 * MS);
    seldom[0] = truth->contexts[0].occupied_ns;
    seldom[1] = truth->contexts[1].occupied_ns;
    fresh_device(1 * MS, 50000);
    queue_kernels(0, 0, 30, 700000, 100);
    queue_kernels(1, 0, 7, 3 * MS, 100);
    for (uint64_t now = 0; now <= 25 * MS; now += 12345) {
        sim_advance(&view, now);
    }
    sim_advance(&view, 25 * MS);
    CHECK(truth->contexts[0].occupied_ns == seldom[0]);
    CHECK(truth->contexts[1].occupied_ns == seldom[1]);
}

static void an_events_time_runs_through_the_slices_of_others(void)
{
    fresh_device(1 * MS, 0);
    queue_kernels(1, 0, 100, 10 * MS, 100);
    queue_record(0, 0, 0);
    queue_kernels(0, 0, 1, 4 * MS, 100);
    queue_record(0, 0, 1);
    sim_advance(&view, 100 * MS);
    uint64_t span = event_ns(1) - event_ns(0);
    CHECK(span >= 7 * MS && span <= 8 * MS);
}

static void slices_are_drawn_from_half_a_millisecond_to_two(void)
{
    enum { BINS = 3 }; /* of half a millisecond each */
    unsigned drawn[BINS] = {0};
    fresh_device(MS / 2, 0);
    node->settings.slice_high_ns = 2 * MS;
    queue_kernels(0, 0, 1, 1000 * MS, 100);
    queue_kernels(1, 0, 1, 1000 * MS, 100);
    sim_advance(&view, 400 * MS);
    const struct sim_truth_device *log = &truth->devices[0];
    CHECK(log->slice_count > 200);
    for (uint64_t i = 0; i + 1 < log->slice_count; i++) { /* the last one may not be over */
        uint64_t length = log->slices[i].end_ns - log->slices[i].begin_ns;
        CHECK(length >= MS / 2 && length <= 2 * MS);
        CHECK(log->slices[i].context != log->slices[i + 1].context);
        drawn[length < 2 * MS ? length / (MS / 2) - 1 : BINS - 1]++;
    }
    CHECK(drawn[0] > 30 && drawn[1] > 30 && drawn[2] > 30);
}

static void changing_contexts_costs_time_that_no_context_gets(void)
{
    fresh_device(1 * MS, MS / 4);
    queue_kernels(0, 0, 100, MS, 100);
    queue_kernels(1, 0, 100, MS, 100);
    sim_advance(&view, 100 * MS);
    uint64_t both = truth->contexts[0].occupied_ns + truth->contexts[1].occupied_ns;
    CHECK(both > 79 * MS && both < 82 * MS);
}

static void a_context_without_work_gives_way_at_once(void)
{
    fresh_device(2 * MS, 0);
    queue_kernels(0, 0, 1, MS / 10, 100);
    queue_kernels(1, 0, 100, MS, 100);
    sim_advance(&view, 10 * MS);
    CHECK(truth->contexts[1].occupied_ns == 10 * MS - MS / 10);
}

static void narrow_kernels_of_one_context_overlap_and_wide_ones_share(void)
{
    fresh_device(1 * MS, 0);
    queue_kernels(0, 0, 1, 4 * MS, 50);
    queue_kernels(0, 1, 1, 4 * MS, 50);
    sim_advance(&view, 4 * MS);
    CHECK(truth->contexts[0].kernels == 2);
    fresh_device(1 * MS, 0);
    queue_kernels(0, 0, 1, 4 * MS, 100);
    queue_kernels(0, 1, 1, 4 * MS, 100);
    sim_advance(&view, 7 * MS);
    CHECK(truth->contexts[0].kernels == 0);
    sim_advance(&view, 8 * MS);
    CHECK(truth->contexts[0].kernels == 2);
    CHECK(truth->contexts[0].solo_ns == 8 * MS);
}

static void copies_run_beside_the_context_that_computes(void)
{
    fresh_device(1 * MS, 0);
    struct sim_op copy = {.kind = OP_COPY, .solo_ns = 3 * MS, .left_ps = 3000 * MS};
    queue_kernels(0, 0, 10, MS, 100);
    sim_push(view.device, 1, 0, &copy);
    sim_advance(&view, 3 * MS + 10);
    CHECK(view.device->contexts[1].pending == 0);
    CHECK(truth->contexts[0].occupied_ns == 3 * MS + 10);
    CHECK(truth->contexts[1].occupied_ns == 0);
}

static void a_wait_holds_its_queue_and_no_other(void)
{
    fresh_device(1 * MS, 0);
    struct sim_op wait = {.kind = OP_WAIT, .slot = 0 << 16 | 0 << 4 | 0, .target = 1};
    queue_kernels(0, 0, 1, 5 * MS, 100);
    sim_push(view.device, 0, 1, &wait);
    queue_kernels(0, 1, 1, MS, 100);
    queue_kernels(0, 2, 1, MS, 100);
    sim_advance(&view, 4 * MS);
    CHECK(view.device->contexts[0].channels[1].head == 0);
    CHECK(view.device->contexts[0].channels[2].head == 1);
    sim_advance(&view, 7 * MS + 1);
    CHECK(view.device->contexts[0].pending == 0);
}

static void a_collective_ends_only_when_all_have_come(void)
{
    fresh_device(1 * MS, 0);
    struct sim_op meet = {.kind = OP_MEET, .slot = 3, .target = 2};
    sim_push(view.device, 0, 0, &meet);
    sim_advance(&view, 10 * MS);
    CHECK(truth->contexts[0].occupied_ns == 10 * MS);
    sim_push(view.device, 1, 0, &meet);
    sim_advance(&view, 13 * MS);
    CHECK(view.device->contexts[0].pending == 0 && view.device->contexts[1].pending == 0);
}

static void utilisation_is_sampled_six_times_a_second(void)
{
    fresh_device(1 * MS, 0);
    queue_kernels(0, 0, 500, MS, 100);
    sim_advance(&view, 1000 * MS);
    CHECK(view.device->sample_count == 5);
    CHECK(view.device->samples[0].busy_ns == SIM_SAMPLE_NS);
    CHECK(view.device->samples[4].busy_ns == 0);
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++) {
        sum += view.device->samples[i].context_ns[0];
    }
    CHECK(sum == 500 * MS);
}

static void the_log_of_slices_adds_up_to_the_totals(void)
{
    fresh_device(1 * MS, 20000);
    queue_kernels(0, 0, 200, MS / 3, 100);
    queue_kernels(1, 0, 200, MS / 7, 100);
    queue_kernels(2, 0, 3, 30 * MS, 100);
    sim_advance(&view, 60 * MS);
    uint64_t sums[3] = {0};
    uint64_t last = 0;
    const struct sim_truth_device *log = &truth->devices[0];
    for (uint64_t i = 0; i < log->slice_count; i++) {
        CHECK(log->slices[i].begin_ns >= last);
        last = log->slices[i].end_ns;
        sums[log->slices[i].context] += log->slices[i].end_ns - log->slices[i].begin_ns;
    }
    for (int i = 0; i < 3; i++) {
        CHECK(sums[i] == truth->contexts[i].occupied_ns);
    }
}

int main(void)
{
    HOLDS(contexts_with_work_queued_share_the_time_evenly);
    HOLDS(it_does_not_matter_how_often_the_device_is_looked_at);
    HOLDS(an_events_time_runs_through_the_slices_of_others);
    HOLDS(slices_are_drawn_from_half_a_millisecond_to_two);
    HOLDS(changing_contexts_costs_time_that_no_context_gets);
    HOLDS(a_context_without_work_gives_way_at_once);
    HOLDS(narrow_kernels_of_one_context_overlap_and_wide_ones_share);
    HOLDS(copies_run_beside_the_context_that_computes);
    HOLDS(a_wait_holds_its_queue_and_no_other);
    HOLDS(a_collective_ends_only_when_all_have_come);
    HOLDS(utilisation_is_sampled_six_times_a_second);
    HOLDS(the_log_of_slices_adds_up_to_the_totals);
    return 0;
}
