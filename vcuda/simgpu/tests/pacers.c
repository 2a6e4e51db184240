/*
 * Two pacers of a few lines, each in two processes that are promised 30 and 70 percent:
 *
 *   pacers spans SECONDS   each process measures with events how long its work took, and pauses in proportion
 *   pacers turns SECONDS   each launches only in its turn of a fixed 50 ms cycle, with at most 2 ms in flight
 *
 * Prints what each got of the wall time, in percent, as the truth has it. With "thirty" or "seventy" behind, it is that one
 * process alone, which begins when it gets a line: for a test that starts both and looks at the truth itself.
 */
#include "check.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "truth.h"

#define PERIOD 0.050

static void pause_for(double duration)
{
    double until = seconds() + duration;
    struct timespec moment = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL);
}

static void by_spans(double share, double end)
{
    CUfunction function = kernel("spin_us_1000");
    CUevent from = NULL, to = NULL;
    OK(cuEventCreate(&from, 0));
    OK(cuEventCreate(&to, 0));
    while (seconds() < end) {
        float ms = 0;
        OK(cuEventRecord(from, NULL));
        for (int i = 0; i < 10; i++) {
            launch(function, NULL);
        }
        OK(cuEventRecord(to, NULL));
        OK(cuEventSynchronize(to));
        OK(cuEventElapsedTime(&ms, from, to));
        pause_for((double)ms / 1000 * (1 - share) / share);
    }
}

static void by_turns(double turn_from, double turn_to, double end)
{
    CUfunction function = kernel("spin_us_1000");
    CUevent ring[2] = {NULL, NULL};
    OK(cuEventCreate(&ring[0], 0));
    OK(cuEventCreate(&ring[1], 0));
    for (unsigned i = 0; seconds() < end; i++) {
        double now = seconds();
        double phase = now - PERIOD * (double)(long)(now / PERIOD);
        if (phase < turn_from || phase > turn_to - 0.001) {
            pause_for(phase < turn_from ? turn_from - phase : PERIOD - phase + turn_from);
            continue;
        }
        OK(cuEventSynchronize(ring[i % 2]));
        launch(function, NULL);
        OK(cuEventRecord(ring[i % 2], NULL));
    }
}

static void pace(double share, int turns, double length)
{
    start();
    double end = seconds() + length;
    if (turns) {
        by_turns(share < 0.5 ? 0 : 0.3 * PERIOD, share < 0.5 ? 0.3 * PERIOD : PERIOD, end);
    } else {
        by_spans(share, end);
    }
    OK(cuCtxSynchronize());
}

static pid_t run(const char *label, double share, int turns, double length)
{
    pid_t child = fork();
    if (child != 0) {
        return child;
    }
    setenv("SIMGPU_LABEL", label, 1);
    pace(share, turns, length);
    _exit(0);
}

static double share_of(const struct sim_truth *truth, const char *label, uint64_t from, uint64_t to)
{
    uint64_t sum = 0;
    const struct sim_truth_device *log = &truth->devices[0];
    for (uint64_t i = 0; i < log->slice_count; i++) {
        const struct sim_truth_slice *slice = &log->slices[i % SIM_TRUTH_SLICES];
        const char *owner = truth->groups[truth->contexts[slice->context].group].label;
        if (slice->begin_ns >= from && slice->end_ns <= to && strcmp(owner, label) == 0) {
            sum += slice->end_ns - slice->begin_ns;
        }
    }
    return 100.0 * (double)sum / (double)(to - from);
}

int main(int count, char **arguments)
{
    CHECK(count == 3 || count == 4);
    int turns = strcmp(arguments[1], "turns") == 0;
    double length = atof(arguments[2]);
    if (count == 4) {
        getchar();
        pace(strcmp(arguments[3], "thirty") == 0 ? 0.3 : 0.7, turns, length);
        return 0;
    }
    char directory[] = "/dev/shm/simgpu-test-XXXXXX";
    char path[128];
    CHECK(mkdtemp(directory) != NULL);
    setenv("SIMGPU_DIR", directory, 1);
    double begin = seconds();
    double end = begin + length;
    pid_t first = run("thirty", 0.3, turns, length);
    pid_t second = run("seventy", 0.7, turns, length);
    CHECK(waitpid(first, NULL, 0) == first && waitpid(second, NULL, 0) == second);
    snprintf(path, sizeof path, "%s/truth", directory);
    int file = open(path, O_RDONLY);
    const struct sim_truth *truth = mmap(NULL, sizeof *truth, PROT_READ, MAP_SHARED, file, 0);
    CHECK(truth != MAP_FAILED);
    uint64_t from = (uint64_t)((begin + 0.2) * 1e9); /* both have started */
    uint64_t to = (uint64_t)(end * 1e9);
    printf("%.1f %.1f\n", share_of(truth, "thirty", from, to), share_of(truth, "seventy", from, to));
    snprintf(path, sizeof path, "rm -r %s", directory);
    return system(path);
}
