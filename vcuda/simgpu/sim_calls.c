#include "sim_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim_clock.h"
#include "sim_driver.h"

enum { RULES = 32 };

/* One clause of SIMGPU_FAULTS: CALL:WHEN:error=RESULT, CALL:WHEN:slow_us=N or CALL:WHEN:kill; WHEN is a count or '*'. */
struct rule {
    char call[64];
    uint64_t when; /* 0 for every call */
    uint64_t seen; /* atomic */
    int error;
    int kill;
    uint64_t slow_ns;
};

static struct rule rules[RULES];
static int rule_count;
static uint64_t kill_step; /* calls count two steps each: in and out */
static uint64_t steps;     /* atomic */
static int trace = -1;     /* a file, where calls are to be named */
static void (*tool)(const char *name); /* called on the way into each call; NULL: there is none */
static __thread int in_tool;
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static void parse_rule(char *clause)
{
    struct rule *rule = &rules[rule_count];
    char *when = strchr(clause, ':');
    char *what = when == NULL ? NULL : strchr(when + 1, ':');
    if (what == NULL || rule_count == RULES) {
        fprintf(stderr, "simgpu: SIMGPU_FAULTS: %s: write CALL:COUNT:error=N, slow_us=N or kill\n", clause);
        exit(2);
    }
    *when++ = '\0';
    *what++ = '\0';
    snprintf(rule->call, sizeof rule->call, "%s", clause);
    rule->when = *when == '*' ? 0 : strtoull(when, NULL, 10);
    rule->kill = strcmp(what, "kill") == 0;
    rule->error = strncmp(what, "error=", 6) == 0 ? atoi(what + 6) : 0;
    rule->slow_ns = strncmp(what, "slow_us=", 8) == 0 ? strtoull(what + 8, NULL, 10) * 1000 : 0;
    rule_count++;
}

static void read_rules(void)
{
    const char *faults = getenv("SIMGPU_FAULTS");
    const char *step = getenv("SIMGPU_KILL_STEP");
    const char *path = getenv("SIMGPU_TRACE");
    const char *library = getenv("SIMGPU_TOOL");
    void *opened = library == NULL ? NULL : dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found = opened == NULL ? NULL : dlsym(opened, "simgpu_called");
    memcpy(&tool, &found, sizeof tool);
    kill_step = step == NULL ? 0 : strtoull(step, NULL, 10);
    trace = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    static char copy[4096]; /* lives as long as the process */
    snprintf(copy, sizeof copy, "%s", faults == NULL ? "" : faults);
    char *rest = NULL;
    for (char *clause = strtok_r(copy, ";", &rest); clause != NULL; clause = strtok_r(NULL, ";", &rest)) {
        parse_rule(clause);
    }
}

static void step(void)
{
    if (kill_step != 0 && __atomic_add_fetch(&steps, 1, __ATOMIC_RELAXED) == kill_step) {
        kill(getpid(), SIGKILL);
    }
}

static void apply_rules(const char *name, struct sim_call *call)
{
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(rule->call, name) != 0) {
            continue;
        }
        uint64_t seen = __atomic_add_fetch(&rule->seen, 1, __ATOMIC_RELAXED);
        if (rule->when != 0 && rule->when != seen) {
            continue;
        }
        if (rule->kill) {
            kill(getpid(), SIGKILL);
        }
        if (rule->slow_ns != 0) {
            sim_spin_until(sim_real_ns() + rule->slow_ns);
        }
        call->error = rule->error != 0 ? rule->error : call->error;
    }
}

void sim_trace_name(const char *name, int version, unsigned long long flags)
{
    if (trace >= 0 && name != NULL) {
        dprintf(trace, "  %s %d %llu\n", name, version, flags);
    }
}

/* What the driver answers also after a kernel has failed: what asks and does no work. */
static int answers_after_a_fault(const char *name)
{
    static const char *const begins[] = {"cuInit", "cuDeviceGet", "cuDriver", "cuGet", "cuCtxGetCurrent", "cuCtxGetDevice",
                                         "cuCtxPush", "cuCtxPop", "cuCtxSetCurrent", "cuThread"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return 1;
        }
    }
    return 0;
}

int sim_has_failed(void)
{
    return sim_ready() && __atomic_load_n(&sim_seat.node->clients[sim_seat.client].fault, __ATOMIC_ACQUIRE) != 0;
}

struct sim_call sim_call_begin(const char *name, uint64_t cost_ns, int needs_init)
{
    struct sim_call call = {0};
    pthread_once(&read_once, read_rules);
    if (trace >= 0) {
        dprintf(trace, "%s\n", name);
    }
    if (tool != NULL && !in_tool) {
        in_tool = 1;
        tool(name);
        in_tool = 0;
    }
    if (rule_count != 0 || kill_step != 0) {
        step();
        apply_rules(name, &call);
    }
    if (call.error == 0 && needs_init && !sim_ready()) {
        call.error = CUDA_ERROR_NOT_INITIALIZED;
    }
    if (call.error == 0 && needs_init && sim_has_failed() && !answers_after_a_fault(name)) {
        call.error = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    call.open = call.error == 0;
    if (call.open && sim_ready() && sim_seat.node->settings.call_costs) {
        call.end_ns = sim_real_ns() + cost_ns;
    }
    return call;
}

void sim_call_end(struct sim_call *call)
{
    if (call->end_ns != 0) {
        sim_spin_until(call->end_ns);
    }
    if (kill_step != 0) {
        step();
    }
}

void sim_call_add_cost(struct sim_call *call, uint64_t cost_ns)
{
    if (sim_seat.node->settings.call_costs) {
        call->end_ns += cost_ns;
    }
}
