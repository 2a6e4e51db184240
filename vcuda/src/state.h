/* state.h: what this process is: outside FairGPU, held to a slice, or refused; and its place in the ledger. */
#ifndef VCUDA_STATE_H
#define VCUDA_STATE_H

#include "allocations.h"
#include "config.h"
#include "driver.h"
#include "graph_memory.h"
#include "ledger.h"
#include "pools.h"

enum mode {
    MODE_UNKNOWN = 0,
    MODE_INERT,   /* no config: every hook hands on */
    MODE_ACTIVE,  /* held to the config's limits */
    MODE_REFUSED, /* config or ledger unusable: cuInit fails, and with it everything */
};

/* Written once by state_mode, then constant: config and ledger may be read without a lock in MODE_ACTIVE. */
extern enum mode state_published;
extern struct vcuda_config config;
extern struct ledger *ledger;

/* Decides at the first call; says on standard error why it refuses. */
enum mode state_decide(void);
static inline enum mode state_mode(void)
{
    enum mode mode = __atomic_load_n(&state_published, __ATOMIC_ACQUIRE);
    return likely(mode != MODE_UNKNOWN) ? mode : state_decide();
}
static inline bool active(void)
{
    return state_mode() == MODE_ACTIVE;
}

/* What a fork must not inherit: its child starts with a new one (the page that points to it is wiped). */
struct process {
    int slot; /* in the ledger; -1: the ledger is full or locked, nothing may be allocated */
    pthread_mutex_t contexts; /* guards making and dropping contexts, so that none is charged twice */
    CUcontext primary[VCUDA_MAX_DEVICES]; /* by index; under `contexts`, as is how often each is retained */
    uint32_t retains[VCUDA_MAX_DEVICES];
    int has_helper; /* atomic */
    uint8_t spare[VCUDA_MAX_DEVICES];   /* 1: a block is charged that nothing lies in yet (linear.h); atomic */
    uint32_t blocks[VCUDA_MAX_DEVICES]; /* blocks in which small allocations lie; atomic */
    struct allocations allocations;
    struct pools pools;
    struct graph_memory graphs;
};

/* This process's own state; made at the first call after start or fork. Never NULL; slot may be -1. */
struct process *process(void);

/* Index in the config of a CUDA device; -1 when the container was not given it. */
int device_index(CUdevice ordinal);

/* The current context and the index of its device: false when there is no context, or not on a device of ours. */
bool current_device(CUcontext *context, int *index);
/* A context is about to end: its handle may come to mean another. */
void device_context_ends(void);

/* The limit in force: the schedule page's where a live one tells another than the config. */
uint64_t memory_limit(int index);

/* The life of a charge: charge (false means: answer CUDA_ERROR_OUT_OF_MEMORY), the driver allocates, confirm; then
 * loosen, the driver frees, discharge. When the driver fails: discharge after charge, confirm after loosen. */
bool charge(int index, uint64_t bytes);
/* Charges what the driver did already; to be confirmed like any other. */
void charge_anyway(int index, uint64_t bytes);
void confirm(int index, uint64_t bytes);
void loosen(int index, uint64_t bytes);
void discharge(int index, uint64_t bytes);

/* One line on standard error, prefixed, once for each call site's flag. */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
