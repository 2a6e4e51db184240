/* pacer.h: launches are admitted in the container's turn, a batch at a time.
 *
 * A thread asks once per batch and stream (pacer_admit_slowly) and is granted a number of launches in the present
 * turn, about half a millisecond of work; the launches of a granted batch cost a thread-local counter and one load.
 */
#ifndef VCUDA_PACER_H
#define VCUDA_PACER_H

#include <stdint.h>

#include "config.h"
#include "loading/driver.h"

/* What a thread may still launch on one stream without asking. Its owner writes it; the helper revokes it by
 * clearing `turn`, under the lock of `queue`. */
struct batch {
    CUstream stream;         /* written by the owner alone. Atomic: a thread that ends a stream reads those of all */
    const struct gate *gate; /* by which it is closed; the owner's alone */
    uint64_t turn;           /* the gate's value when it was granted; 0: nothing is granted. Atomic */
    uint32_t credits;        /* launches left; written by the owner alone. Atomic */
    uint32_t granted;        /* how many there were; written under the queue's lock. Atomic */
    struct queue *queue;     /* NULL: not open. Atomic, so that one can learn which lock to take */
    struct flow *flow;       /* in the queue, of the stream; this and what follows: under the queue's lock */
    uint64_t granted_ns;     /* the work that it was granted for */
    uint64_t serial;         /* the queue's when it was opened: another means that the context has ended since */
    uint64_t opened_ns;
    bool waits; /* the stream waits for something else before the next launch; the owner's alone */
};

#define ROWS 8
#define BATCHES (2 * ROWS) /* two streams whose handles mean the same row do not end each other's batch */

extern __thread struct batch pacer_batches[BATCHES] __attribute__((tls_model("initial-exec")));

/* One word per device: the end of the turn that is open now, 0 while it is closed. The thread that finds a change stores it
 * (the helper, or a thread that asks); a granted batch is good while the word is the same. */
struct gate {
    _Alignas(64) uint64_t turn;
};
extern struct gate pacer_gates[VCUDA_MAX_DEVICES];

struct batch *pacer_other_batch(struct batch *row, CUstream stream);

/* The thread's batch of this stream; where it has none, the one of the row that is to be given up for it. */
static inline struct batch *pacer_batch_of(CUstream stream)
{
    struct batch *row = &pacer_batches[2 * (((uintptr_t)stream >> 4 ^ (uintptr_t)stream >> 10) % ROWS)];
    return likely(row->stream == stream) ? row : pacer_other_batch(row, stream);
}

bool pacer_admit_slowly(CUstream stream, struct batch *batch);

/* Before each launch. True: pacer_launched is to be called right behind it. */
static inline bool pacer_admit(CUstream stream)
{
    struct batch *batch = pacer_batch_of(stream);
    uint64_t turn = __atomic_load_n(&batch->turn, __ATOMIC_RELAXED);
    uint32_t credits = __atomic_load_n(&batch->credits, __ATOMIC_RELAXED);
    if (likely(batch->stream == stream && turn != 0 && credits != 0 &&
               turn == __atomic_load_n(&batch->gate->turn, __ATOMIC_RELAXED))) {
        __atomic_store_n(&batch->credits, credits - 1, __ATOMIC_RELAXED);
        return false;
    }
    return pacer_admit_slowly(stream, batch);
}

/* Ends the batch of the launch that was just made, so that it is measured by itself. */
void pacer_launched(CUstream stream);

/* The calling thread is about to let the stream wait for a function of the host, a value or another stream: what it launched
 * before is measured by itself, and what it launches behind has a beginning of its own, unless much is in flight. */
void pacer_waits(CUstream stream);

/* A context was made on this device: from now on there can be launches. */
void pacer_context_made(int index);
/* The context of the i-th queue, where that is of this device; otherwise NULL. False: there are not so many. */
bool pacer_context_at(uint32_t i, int index, CUcontext *context);
/* The context is about to end: nothing of it may be touched any more. What it did is accounted for, and its driver asked about
 * that where it still lives for certain (`is_alive`). NULL: nothing. */
void pacer_context_ends(CUcontext context, bool is_alive);
/* It has ended, and the captures of its streams with it. */
void pacer_context_ended(CUcontext context);
/* The stream is about to be destroyed. */
void pacer_stream_ends(CUstream stream);

/* A stream is about to capture; and it captures no more, as far as the program is concerned. */
void pacer_capture_begins(CUstream stream);
void pacer_capture_ends(CUstream stream);

/* Closes a gate (0), or says until when it is open. */
void pacer_set_gate(int index, uint64_t turn);

/* Opens or closes the device's gate by the present turn. Returns the turn; false when the device has none. */
struct turn;
bool pacer_look(int index, uint64_t now_ns, struct turn *turn);

/* For the helper: closes batches that went quiet (or `all`) and accounts for completed work. True while work is in
 * flight. */
bool pacer_collect(bool all);

#endif
