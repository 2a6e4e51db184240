/* spans.h: how long the work of one context occupied the GPU, measured by events around batches of launches. */
#ifndef VCUDA_SPANS_H
#define VCUDA_SPANS_H

#include <pthread.h>

#include "driver.h"

#define SPANS 64 /* batches in flight at one time in a context */

struct span {
    CUevent begin, end; /* begin is NULL when the one before was still in flight */
    uint32_t launches;
    bool idled;         /* the GPU was through with all of it before its end was recorded */
    uint64_t estimate_ns;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC right before each event was recorded: it happened later */
};

/* One context's work. `lock` guards all of it and every driver call on its events. */
struct queue {
    pthread_mutex_t lock;
    CUcontext context; /* NULL: free */
    int index;
    uint64_t serial; /* grows each time that it is taken or given up */
    struct span spans[SPANS];
    uint32_t head, tail; /* spans head..tail-1 are in flight, modulo SPANS */
    uint64_t in_flight_ns; /* sum of their estimates */
    uint64_t granted_ns;   /* the same of all open batches, as if each were used up */
    uint64_t mean_ns;      /* of one launch of late; 0 while unknown */
    uint64_t solo_ns;      /* of one launch when nobody disturbs: near the least of late */
    uint64_t even_ns;      /* of work since launches last differed in length, less what since seemed longer */
    uint64_t known_ns, known_launches; /* sums of late, over spans in which the GPU never idled */
    CUevent spare[2 * SPANS];
    uint32_t spares;
    CUstream clock;        /* a stream of our own, on which the base is recorded */
    CUevent base;          /* GPU times are counted from it */
    uint64_t base_ns;      /* CLOCK_MONOTONIC when it happened, as near as spans have told */
    uint64_t cursor_ns;    /* up to here the GPU's time is accounted for */
    CUevent begin;         /* recorded before the oldest open batch when nothing was in flight */
    uint64_t begin_ns;     /* CLOCK_MONOTONIC just before: the work began later, but in the same turn */
    bool idled;            /* the GPU was through with the last span before its end was recorded */
    uint64_t sampled_ns;   /* CLOCK_MONOTONIC when a launch was last measured by itself */
};

/* The queue of a context, made at its first launch; locked. NULL when there is no room for one more. */
struct queue *spans_queue(CUcontext context, int index);
/* Gives it up without touching the driver: the context is ending. */
void spans_forget(CUcontext context);
/* All queues in use, for the helper: NULL at the end. Not locked. */
struct queue *spans_walk(uint32_t i);

/* Makes the queue's context current; `pushed` goes to spans_leave, which puts the old one back. False: it has ended. */
bool spans_enter(struct queue *queue, bool *pushed);
void spans_leave(bool pushed);

/* All under the queue's lock, with its context current. */
/* True where the GPU had nothing of the process to do, and the launch that follows is to be measured by itself. */
bool spans_begin(struct queue *queue, CUstream stream);
void spans_end(struct queue *queue, CUstream stream, uint32_t launches);
/* Takes what has completed off the queue and accounts for it. */
void spans_reap(struct queue *queue);

#endif
