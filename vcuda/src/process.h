/* process.h: what one process has: its place in the ledger, its contexts, allocations, pools and graphs. */
#ifndef VCUDA_PROCESS_H
#define VCUDA_PROCESS_H

#include "config.h"
#include "loading/driver.h"
#include "memory/allocations.h"
#include "memory/charge.h"
#include "memory/deferred_frees.h"
#include "memory/graph_memory.h"
#include "memory/multicast.h"
#include "memory/pools.h"

/* What a fork must not inherit: its child starts with a new one (the page that points to it is wiped). */
struct process {
    int slot;                             /* in the ledger; -1: the ledger is full or locked, nothing may be allocated */
    pthread_mutex_t contexts;             /* guards what follows up to `ending`; no driver call is made under it */
    CUcontext primary[VCUDA_MAX_DEVICES]; /* by index, as is how often each is retained */
    uint32_t retains[VCUDA_MAX_DEVICES];
    uint32_t making[VCUDA_MAX_DEVICES];  /* threads whose calls may make the primary context now */
    uint32_t ending[VCUDA_MAX_DEVICES];  /* and those whose calls may end it */
    int has_helper;                      /* atomic */
    uint8_t spare[VCUDA_MAX_DEVICES];    /* 1: a block is charged that nothing lies in yet (linear.h); atomic */
    uint32_t blocks[VCUDA_MAX_DEVICES];  /* blocks in which small allocations lie; atomic */
    struct late late[VCUDA_MAX_DEVICES]; /* by index */
    struct allocations allocations;
    struct pools pools;
    struct deferred_frees deferred_frees;
    struct graph_memory graphs;
    struct multicast multicast;
};

/* This process's own state; made at the first call after start or fork. Never NULL; slot may be -1. */
struct process *process(void);

#endif
