/* spans.h: how long the work of one context occupied the GPU, measured by events around batches of launches. */
#ifndef VCUDA_SPANS_H
#define VCUDA_SPANS_H

#include <pthread.h>

#include "loading/driver.h"
#include "time/estimate.h"

#define SPANS 64 /* batches in flight at one time in a context */
#define DEEP 16  /* of them: a program that puts so much ahead may fill the streams' queues, and events take places in them */
#define FLOWS 64 /* streams of a context that have something in flight at one time; more share the first entry */

/* One stream's part of what is in flight. */
struct flow {
    uint64_t key;          /* spans_key of the stream */
    uint32_t uses;         /* spans and open batches of it; 0: free */
    uint64_t in_flight_ns; /* estimates of its spans */
    uint64_t granted_ns;   /* the same of its open batches, as if each were used up */
    uint64_t worked_ns;    /* its part of the work that was seen since its last span ended */
    CUevent begin;         /* recorded before the oldest open batch while something was in flight; NULL: none */
    uint64_t begin_ns;     /* CLOCK_MONOTONIC just before */
};

/* Launches of a batch that has ended. */
struct part {
    struct flow *flow;
    CUstream stream;
    uint32_t launches;
    uint64_t estimate_ns;
    uint64_t opened_ns; /* CLOCK_MONOTONIC before the first of them */
    uint64_t serial;    /* the queue's: another means that the context has ended since */
};

struct span {
    CUevent begin;   /* NULL: none was recorded, and it begins where what was in flight before it ends */
    CUevent end;     /* NULL when none was recorded: the stream is asked whether it is done */
    CUstream stream; /* to be asked; NULL: no thread may ask it, and its estimate serves instead */
    struct flow *flow;
    uint64_t id;
    uint32_t launches;
    bool idled; /* the GPU was through with all of it before its end was recorded */
    bool begun; /* its beginning has happened, or none was recorded */
    uint64_t estimate_ns;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC right before begin and end were recorded: they happened later */
    uint64_t unfinished_ns;    /* CLOCK_MONOTONIC when it was last seen to go on */
    uint64_t charged_ns;       /* of it, while it went on */
    uint64_t stood_ns;         /* CLOCK_MONOTONIC when it was last seen not to have begun; 0: never */
    uint64_t prolonged;        /* how often its end was recorded anew: events are used again */
};

/* One context's work. `lock` guards all of it; no driver call is made under it. */
struct queue {
    pthread_mutex_t lock;
    CUcontext context;        /* NULL: free. Atomic */
    CUcontext for_all;        /* that any thread may make current: itself, or of a green one the primary. Atomic */
    int index;                /* of its device; atomic */
    uint64_t serial;          /* grows each time that it is taken or given up */
    uint32_t callers;         /* threads that call the driver for this queue now */
    bool reaping;             /* one of them looks which spans are done */
    bool beginning;           /* one of them records a beginning */
    struct span spans[SPANS]; /* in flight, the oldest first */
    uint32_t count;
    uint64_t next_id;
    struct flow flows[FLOWS];
    uint64_t in_flight_ns; /* sums over the flows */
    uint64_t granted_ns;
    struct estimate estimate;
    CUevent spare[2 * SPANS];
    uint32_t spares;
    CUevent base;              /* GPU times are counted from it */
    uint64_t base_ns;          /* CLOCK_MONOTONIC when it happened, as near as spans have shown */
    uint64_t cursor_ns;        /* up to here the GPU's time is accounted for */
    CUevent begin;             /* recorded before the oldest open batch when nothing was in flight */
    const struct flow *begins; /* of whose stream: a batch of another stream may end before that one */
    uint64_t begin_ns;         /* CLOCK_MONOTONIC just before: the work began later, but in the same turn */
    bool idled;                /* the GPU was through with the last span before its end was recorded */
    uint64_t sampled_ns;       /* CLOCK_MONOTONIC when a launch was last measured by itself */
    uint64_t held_ns[2];       /* CLOCK_MONOTONIC when a launch of the process was last held: from, to */
    const struct flow *held;   /* whose */
    /* For other queues: since when its oldest span goes on (0: none), and the estimate of all that is in flight. Atomic. */
    uint64_t oldest_since_ns, all_in_flight_ns;
    uint64_t at_work_since_ns; /* when the earliest in flight that is not accounted for may have begun; 0: none. at_work_lock */
    uint64_t wanted_ns;        /* CLOCK_MONOTONIC when the context last wanted work, or had some that does not stand; atomic */
    uint64_t waiter;           /* id of a span that goes on for so long that it may wait for a launch which is held; 0: none */
};

/* The queue of a context, made at its first launch. NULL when there is no room for one more. */
struct queue *spans_queue(CUcontext context, int index);
/* Gives it up without touching the driver: the context is ending. Waits for threads that call the driver for it. */
void spans_forget(CUcontext context);
/* The stream is about to end, or to capture: no thread asks it any more. Waits for threads that do. */
void spans_leave_alone(CUstream stream);
/* All queues in use, for the helper: NULL at the end. Not locked. */
struct queue *spans_walk(uint32_t i);

/* What was current before, and the thread's capture mode. */
struct before {
    bool pushed;
    CUstreamCaptureMode mode;
};
/* Around every driver call for a queue: makes its context current, and lets the thread call what captures of others forbid.
 * Without the lock. False: the context has ended. */
bool spans_enter(struct queue *queue, struct before *before);
void spans_leave(struct queue *queue, const struct before *before);

/* Between spans_enter and spans_leave, without the lock: these call the driver. */
/* True where the GPU had nothing of the process to do, and the launch that follows is to be measured by itself. Where the
 * process is held to turns or the stream waits for something else (`apart`), and where another stream's work may not have
 * begun, a beginning is recorded also behind what is in flight. False, with nothing recorded for good, where the queue has
 * another serial by then: the context has ended. */
bool spans_begin(struct queue *queue, uint64_t serial, CUstream stream, struct flow *flow, bool apart);
/* Records the end of a part. By the thread that launches into the stream, right before or behind a launch: on the legacy
 * stream an event is a barrier, which the launch is as well. On other streams also before a wait. */
void spans_end(struct queue *queue, const struct part *part);
/* Takes what has completed off the queue and accounts for it. */
void spans_reap(struct queue *queue);

/* Under the lock. */
/* A part whose end no event records. */
void spans_end_unseen(struct queue *queue, const struct part *part);
/* Charges what the oldest span that runs took up to now, where that is much. */
void spans_charge_unfinished(struct queue *queue, uint64_t now_ns);
/* Flows that have spans, open batches, or a launch that asks: at least one, where a launch does. */
uint32_t spans_flows(const struct queue *queue);
/* For how long the GPU has been at what is in flight and has not ended: of streams side by side each has a part of that behind
 * it. */
uint64_t spans_worked_ns(const struct queue *queue, uint64_t now_ns);
/* The flow of a stream as this thread means it; in use until it is given back. */
struct flow *spans_flow(struct queue *queue, CUstream stream);
void spans_flow_back(struct flow *flow);
/* Contexts of this process on the same device that had or wanted work since then, besides this one and, where it is a part of the
 * primary context (a green one), the others of that. Several that are parts of one other count once. */
uint32_t spans_contexts_beside(const struct queue *queue, uint64_t since_ns);
/* Since when work of this process has gone on for the longest on another device; 0: none does. `estimate_ns` is of all that is
 * in flight with it. */
uint64_t spans_on_other_devices(const struct queue *queue, uint64_t *estimate_ns);
/* Since when the stream's oldest span has been there and has not begun, although nothing of the shim's is before it: the stream
 * waits for a function of the host, for another stream, or for the GPU. 0: it has begun, or there is none. */
uint64_t spans_stands_since(const struct queue *queue, const struct flow *flow);
/* Whether nothing that is in flight has begun: all of it waits for a function of the host, for a stream, or for the GPU. */
bool spans_all_stand(const struct queue *queue);
/* Whether work of another stream that was there at that time goes on: what has stood since then may wait for it. */
bool spans_goes_on_since(const struct queue *queue, const struct flow *flow, uint64_t since_ns);
/* The oldest span of another flow; 0: there is none. */
uint64_t spans_oldest_of_others(const struct queue *queue, const struct flow *flow);

/* In the child of a fork, which has one thread: forgets all contexts. */
void spans_begin_anew(void);

#endif
