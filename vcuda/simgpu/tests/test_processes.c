/* Several processes on one simulated node. Each forks before it calls the driver, as programs must. */
#include "check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "truth.h"

#define MIB (1UL << 20)
#define TEARDOWN_S 0.020 /* of a process, from the last look at which it lived */
#define LOOK_S 0.005     /* the least time between two looks */
#define SILENCE_US 80000 /* longer than that, and than callers go on beside one that looks */

static char directory[64];

static void fresh_node(void)
{
    snprintf(directory, sizeof directory, "/dev/shm/simgpu-test-XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    setenv("SIMGPU_DIR", directory, 1);
}

static void end_node(void)
{
    static const char *files[] = {"node", "truth", "clients"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        unlink(path);
    }
    CHECK(rmdir(directory) == 0);
}

/* Queues ten seconds of work, says so, and holds the GPU busy until the other end of `until` is closed. */
static pid_t spawn_busy(int ready, int until)
{
    char nothing;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) {
        return child;
    }
    start();
    CUfunction function = kernel("spin_ms_10");
    for (int i = 0; i < 1000; i++) {
        launch(function, NULL);
    }
    CHECK(write(ready, "x", 1) == 1);
    CHECK(read(until, &nothing, 1) == 1);
    _exit(0);
}

static void finish(pid_t child)
{
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Waits on its own span, as a pacer that trusts completion times would see it. */
static void measure(int out)
{
    start();
    CUfunction function = kernel("spin_us_4000");
    CUevent begin = NULL, end = NULL;
    float worst = 0;
    OK(cuEventCreate(&begin, 0));
    OK(cuEventCreate(&end, 0));
    for (int i = 0; i < 20; i++) {
        float ms = 0;
        OK(cuEventRecord(begin, NULL));
        launch(function, NULL);
        OK(cuEventRecord(end, NULL));
        OK(cuEventSynchronize(end));
        OK(cuEventElapsedTime(&ms, begin, end));
        worst = ms > worst ? ms : worst;
    }
    CHECK(write(out, &worst, sizeof worst) == sizeof worst);
    exit(0);
}

static void a_span_counts_the_time_of_others(void)
{
    fresh_node();
    int pipes[2], enough[2];
    char ready;
    CHECK(pipe(pipes) == 0 && pipe(enough) == 0);
    pid_t other = spawn_busy(pipes[1], enough[0]);
    CHECK(read(pipes[0], &ready, 1) == 1);
    pid_t measured = fork();
    if (measured == 0) {
        measure(pipes[1]);
    }
    float worst = 0;
    CHECK(read(pipes[0], &worst, sizeof worst) == sizeof worst);
    CHECK(worst > 6.0f);
    finish(measured);
    CHECK(write(enough[1], "x", 1) == 1);
    finish(other);
    for (int i = 0; i < 2; i++) {
        close(pipes[i]);
        close(enough[i]);
    }
    end_node();
}

/* Ends with its parent, also where that fails. */
static void hold_memory(int out)
{
    CUdeviceptr address = 0;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    start();
    OK(cuMemAlloc(&address, 1000 * MIB));
    CUfunction function = kernel("spin_ms_1000");
    launch(function, NULL);
    CHECK(write(out, "x", 1) == 1);
    for (;;) {
        launch(function, NULL);
    }
}

static size_t left(void)
{
    size_t bytes = 0, total = 0;
    OK(cuMemGetInfo(&bytes, &total));
    return bytes;
}

/* This one joins the node itself, in a child of its own, so that the others can go on forking. */
static void watch_a_kill(void)
{
    int pipes[2];
    char ready = 0;
    CHECK(pipe(pipes) == 0);
    pid_t victim = fork();
    if (victim == 0) {
        hold_memory(pipes[1]);
    }
    CHECK(read(pipes[0], &ready, 1) == 1);
    start();
    double looked = seconds();
    size_t before = left();
    kill(victim, SIGKILL);
    CHECK(waitpid(victim, NULL, 0) == victim);
    double limit = seconds() + LIMIT_S;
    while (left() == before && seconds() < limit) {
        usleep(1000);
    }
    CHECK(seconds() - looked >= TEARDOWN_S - LOOK_S);
    CHECK(left() - before == (1000 + 256 + 2) * MIB);
    launch(kernel("spin_us_10"), NULL);
    OK(cuCtxSynchronize());
    exit(0);
}

static void the_memory_of_a_killed_process_comes_back_late(void)
{
    fresh_node();
    pid_t watcher = fork();
    if (watcher == 0) {
        watch_a_kill();
    }
    finish(watcher);
    end_node();
}

static void hold_memory_without_calls(int out)
{
    CUdeviceptr address = 0;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    start();
    OK(cuMemAlloc(&address, 1000 * MIB));
    CHECK(write(out, "x", 1) == 1);
    for (;;) {
        pause();
    }
}

enum { VICTIMS = 20, CALLERS = 16 };

static CUcontext watchers;
static pthread_barrier_t at_once;

/* What is left, as the thread's first call after the silence finds it. */
static void *look_at_once(void *found)
{
    OK(cuCtxSetCurrent(watchers));
    pthread_barrier_wait(&at_once);
    *(size_t *)found = left();
    return NULL;
}

static void watch_kills_in_silence(void)
{
    int pipes[2];
    char ready = 0;
    pid_t victims[VICTIMS];
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < VICTIMS; i++) {
        victims[i] = fork();
        if (victims[i] == 0) {
            hold_memory_without_calls(pipes[1]);
        }
        CHECK(read(pipes[0], &ready, 1) == 1);
    }
    watchers = start();
    size_t before = left();
    for (size_t i = 0; i < VICTIMS; i++) {
        pthread_t threads[CALLERS];
        size_t found[CALLERS];
        kill(victims[i], SIGKILL);
        CHECK(waitpid(victims[i], NULL, 0) == victims[i]);
        usleep(SILENCE_US);
        CHECK(pthread_barrier_init(&at_once, NULL, CALLERS) == 0);
        for (int n = 0; n < CALLERS; n++) {
            CHECK(pthread_create(&threads[n], NULL, look_at_once, &found[n]) == 0);
        }
        for (int n = 0; n < CALLERS; n++) {
            CHECK(pthread_join(threads[n], NULL) == 0);
            CHECK(found[n] - before == (i + 1) * (1000 + 256) * MIB);
        }
        CHECK(pthread_barrier_destroy(&at_once) == 0);
    }
    exit(0);
}

static void all_who_call_after_a_silence_find_the_dead_torn_down(void)
{
    fresh_node();
    pid_t watcher = fork();
    if (watcher == 0) {
        watch_kills_in_silence();
    }
    finish(watcher);
    end_node();
}

static void die_anywhere(void)
{
    CUdeviceptr address = 0;
    start();
    CUfunction function = kernel("spin_us_20");
    for (;;) {
        launch(function, NULL);
        OK(cuMemAlloc(&address, 3 * MIB));
        OK(cuMemFree(address));
    }
}

static void watch_kills(void)
{
    unsigned random = 1;
    for (int i = 0; i < 60; i++) {
        pid_t victim = fork();
        if (victim == 0) {
            die_anywhere();
        }
        random = random * 1103515245 + 12345;
        usleep(2000 + random / 65536 % 8000);
        kill(victim, SIGKILL);
        CHECK(waitpid(victim, NULL, 0) == victim);
    }
    start();
    double limit = seconds() + LIMIT_S;
    while (left() != (81920UL - 256) * MIB && seconds() < limit) {
        usleep(2000);
    }
    CHECK(left() == (81920UL - 256) * MIB);
    exit(0);
}

static void no_byte_is_lost_to_kills_at_any_instruction(void)
{
    fresh_node();
    setenv("SIMGPU_CALL_COSTS", "0", 1);
    pid_t watcher = fork();
    if (watcher == 0) {
        watch_kills();
    }
    finish(watcher);
    unsetenv("SIMGPU_CALL_COSTS");
    end_node();
}

static void a_forked_child_cannot_use_the_parents_gpu(void)
{
    fresh_node();
    pid_t parent = fork();
    if (parent == 0) {
        start();
        pid_t child = fork();
        if (child == 0) {
            size_t bytes = 0;
            _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemGetInfo(&bytes, &bytes) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
        }
        finish(child);
        exit(0);
    }
    finish(parent);
    end_node();
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* or children would print it again */
    HOLDS(a_span_counts_the_time_of_others);
    HOLDS(the_memory_of_a_killed_process_comes_back_late);
    HOLDS(all_who_call_after_a_silence_find_the_dead_torn_down);
    HOLDS(no_byte_is_lost_to_kills_at_any_instruction);
    HOLDS(a_forked_child_cannot_use_the_parents_gpu);
    return 0;
}
