/*
 * What every exported call does on its way in and out: it is counted, may fail or die as the test asks (SIMGPU_FAULTS,
 * SIMGPU_KILL_STEP), and takes the time that a real driver takes.
 */
#ifndef SIM_CALLS_H
#define SIM_CALLS_H

#include <stdint.h>

/* Nanoseconds, in the range that is seen on current servers. */
enum {
    COST_QUERY = 80,
    COST_EVENT = 700,
    COST_LAUNCH = 2200,
    COST_SYNC = 900,
    COST_MEMORY = 1800,
    COST_COPY = 2500,
    COST_GRAPH = 5000,
    COST_VIRTUAL = 20000,
    COST_MODULE = 150000,
    COST_CONTEXT = 30000000,
    COST_INIT = 20000000
};

struct sim_call {
    uint64_t end_ns; /* real time before which the call does not return; 0 for none */
    int error;       /* the result that the test asked for; 0 for none */
    int open;        /* the call goes ahead */
};

/* In the trace: what cuGetProcAddress was asked. */
void sim_trace_name(const char *name, int version, unsigned long long flags);
struct sim_call sim_call_begin(const char *name, uint64_t cost_ns, int needs_init);
void sim_call_end(struct sim_call *call);
/* Whether a kernel of this process has failed: what has waited for it returns the error. */
int sim_has_failed(void);
/* For calls whose cost depends on what they find. */
void sim_call_add_cost(struct sim_call *call, uint64_t cost_ns);

/* Opens a driver call: returns from the function when it must not go ahead. */
#define SIM_ENTER_COST(cost, needs_init)                                                             \
    struct sim_call sim_call_ __attribute__((cleanup(sim_call_end))) =                              \
        sim_call_begin(__func__, cost, needs_init);                                                  \
    if (!sim_call_.open) {                                                                           \
        return (CUresult)sim_call_.error;                                                            \
    }
/*
 * Defines a call and its twin for per-thread default streams. The result is an expression of the parameters, one of which is
 * named `stream`; SIM_SYNC_TWINS is for calls that take no stream and work in the default one.
 */
#define SIM_TWINS(name, twin, cost, parameters, ...)                                                 \
    SIM_EXPORT CUresult CUDAAPI name parameters                                                      \
    {                                                                                                \
        SIM_ENTER(cost);                                                                             \
        return __VA_ARGS__;                                                                          \
    }                                                                                                \
    SIM_EXPORT CUresult CUDAAPI name##twin parameters;                                               \
    SIM_EXPORT CUresult CUDAAPI name##twin parameters                                                \
    {                                                                                                \
        SIM_ENTER(cost);                                                                             \
        stream = sim_per_thread(stream);                                                             \
        return __VA_ARGS__;                                                                          \
    }
#define SIM_SYNC_TWINS(name, twin, cost, parameters, ...)                                            \
    SIM_EXPORT CUresult CUDAAPI name parameters                                                      \
    {                                                                                                \
        CUstream stream = NULL;                                                                      \
        SIM_ENTER(cost);                                                                             \
        return __VA_ARGS__;                                                                          \
    }                                                                                                \
    SIM_EXPORT CUresult CUDAAPI name##twin parameters;                                               \
    SIM_EXPORT CUresult CUDAAPI name##twin parameters                                                \
    {                                                                                                \
        CUstream stream = CU_STREAM_PER_THREAD;                                                      \
        SIM_ENTER(cost);                                                                             \
        return __VA_ARGS__;                                                                          \
    }
#define SIM_ENTER(cost) SIM_ENTER_COST(cost, 1)
#define SIM_ENTER_ANY(cost) SIM_ENTER_COST(cost, 0)

#endif
