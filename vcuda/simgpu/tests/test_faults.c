/* Faults on demand, and drivers of several releases. Each test is a process of its own, for settings are read once. */
#include "check.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a child ended: its exit status, or minus the signal that killed it. */
static int outcome(void (*body)(void))
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void allocate_three_times(void)
{
    CUdeviceptr address = 0;
    start();
    for (int i = 0; i < 3; i++) {
        CUresult result = cuMemAlloc(&address, 1024);
        if (result != CUDA_SUCCESS) {
            _exit(10 * (i + 1) + (int)result);
        }
    }
}

static void a_call_fails_when_a_rule_says_so(void)
{
    setenv("SIMGPU_FAULTS", "cuMemAlloc_v2:2:error=2", 1);
    CHECK(outcome(allocate_three_times) == 22);
    setenv("SIMGPU_FAULTS", "cuInit:5:error=999;cuMemAlloc_v2:*:error=2", 1);
    CHECK(outcome(allocate_three_times) == 12);
    unsetenv("SIMGPU_FAULTS");
}

static void a_call_kills_its_process_when_a_rule_says_so(void)
{
    setenv("SIMGPU_FAULTS", "cuMemAlloc_v2:3:kill", 1);
    CHECK(outcome(allocate_three_times) == -SIGKILL);
    unsetenv("SIMGPU_FAULTS");
}

static void a_process_dies_at_the_step_that_is_named(void)
{
    setenv("SIMGPU_KILL_STEP", "6", 1); /* cuInit, cuCtxCreate, cuMemAlloc: two steps each */
    CHECK(outcome(allocate_three_times) == -SIGKILL);
    setenv("SIMGPU_KILL_STEP", "11", 1);
    CHECK(outcome(allocate_three_times) == 0);
    unsetenv("SIMGPU_KILL_STEP");
}

static void one_slow_call(void)
{
    start();
    double begin = seconds();
    OK(cuCtxSynchronize());
    _exit(seconds() - begin >= 0.03 ? 0 : 1);
}

static void a_call_takes_the_time_that_a_rule_says(void)
{
    setenv("SIMGPU_FAULTS", "cuCtxSynchronize:1:slow_us=30000", 1);
    CHECK(outcome(one_slow_call) == 0);
    unsetenv("SIMGPU_FAULTS");
}

static void a_thousand_launches(void)
{
    start();
    CUfunction function = kernel("spin_ns_1");
    launch(function, NULL);
    OK(cuCtxSynchronize());
    double begin = seconds();
    for (int i = 0; i < 1000; i++) {
        launch(function, NULL);
    }
    _exit(seconds() - begin >= 0.0022 ? 0 : 1);
}

static void a_launch_takes_as_long_as_on_a_server(void)
{
    CHECK(outcome(a_thousand_launches) == 0);
}

static void a_bad_fault_or_setting_stops_the_program(void)
{
    CHECK(freopen("/dev/null", "w", stderr) != NULL); /* what it says is not for this output */
    setenv("SIMGPU_FAULTS", "cuMemAlloc_v2", 1);
    CHECK(outcome(allocate_three_times) == 2);
    unsetenv("SIMGPU_FAULTS");
    setenv("SIMGPU_SLICE_US", "2000-500", 1);
    CHECK(outcome(allocate_three_times) == 2);
    unsetenv("SIMGPU_SLICE_US");
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    HOLDS(a_call_fails_when_a_rule_says_so);
    HOLDS(a_call_kills_its_process_when_a_rule_says_so);
    HOLDS(a_process_dies_at_the_step_that_is_named);
    HOLDS(a_call_takes_the_time_that_a_rule_says);
    HOLDS(a_launch_takes_as_long_as_on_a_server);
    HOLDS(a_bad_fault_or_setting_stops_the_program);
    return 0;
}
