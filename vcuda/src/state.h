/* state.h: what this process is: outside FairGPU, held to a slice, or refused. */
#ifndef VCUDA_STATE_H
#define VCUDA_STATE_H

#include <stdbool.h>

#include "compiler.h"
#include "config.h"
#include "ledger/ledger.h"

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

/* Decides at the first call; says on standard error why it refuses. A process that lacks a descriptor or memory for that is
 * refused, and decides at a later call. */
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

#endif
