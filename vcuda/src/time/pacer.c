/* pacer.c: who asks is granted a batch, in the container's turn, while it has credit and little in flight. */
#include "pacer.h"

#include <sys/prctl.h>

#include "account.h"
#include "batches.h"
#include "clock.h"
#include "device.h"
#include "helper.h"
#include "spans.h"
#include "state.h"

#define IN_FLIGHT_NS 2000000u /* of work that a process may have queued in its turn, or one kernel that is longer */
#define ALONE_NS 8000000u     /* the same while nobody else has a turn: a queue that never runs dry is in nobody's way */
#define BATCH_NS 500000u       /* of estimated work granted at a time */
#define MOST_GRANTED 256u
#define LEAST_PAUSE_NS 20000u /* between looks of who waits in the turn */
#define MOST_PAUSE_NS 250000u
#define NO_END (UINT64_MAX - 1) /* the gate of a turn that does not end */

struct gate pacer_gates[VCUDA_MAX_DEVICES];
static struct gate never_open;
struct gate *pacer_gate = &never_open;

/* Turns alone keep short kernels to their share, and the node settles what runs over their end. Kernels that fill a
 * good part of a turn must be paid for from the share itself. */
static bool in_debt(const struct queue *queue, const struct turn *turn)
{
    int64_t credit = __atomic_load_n(&ledger->devices[queue->index].credit_ns, __ATOMIC_RELAXED);
    return credit <= 0 && queue->mean_ns > turn->per_period_ns / 2;
}

void pacer_set_gate(int index, uint64_t turn)
{
    if (__atomic_load_n(&pacer_gates[index].turn, __ATOMIC_RELAXED) != turn)
        __atomic_store_n(&pacer_gates[index].turn, turn, __ATOMIC_RELAXED);
}

bool pacer_look(int index, uint64_t now_ns, struct turn *turn)
{
    if (!schedule_turn_now(index, now_ns, turn)) {
        pacer_set_gate(index, NO_END);
        return false;
    }
    account_credit(index, turn, now_ns);
    bool whole = turn->end_ns - now_ns >= turn->period_ns;
    pacer_set_gate(index, !turn->open ? 0 : whole ? NO_END : turn->end_ns);
    return true;
}

/* Sleeps as exactly as the kernel can; the thread's own timer slack is put back. */
static void wait_ns(uint64_t ns)
{
    struct timespec moment = {0, (long)(ns < 999999999 ? ns : 999999999)};
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    nanosleep(&moment, NULL);
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}

static uint64_t least_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t most_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* How much work a process may have in flight with so much left of the turn: one kernel, or 2 ms of shorter ones. Close to the
 * turn's end less; where several of the container share the turn, their parts of it, so that all are done at its end. */
static uint64_t may_queue(uint64_t left_ns, uint64_t kernel_ns, uint64_t contenders)
{
    uint64_t part = contenders > 1 ? left_ns * 3 / 4 / contenders : left_ns / 2;
    return most_of(kernel_ns, least_of(part, IN_FLIGHT_NS));
}

/* How long to wait where so much more is queued than may be: for half of it to be worked off, and never for so long that a
 * queue of wrongly estimated work would run dry. */
static uint64_t until_room(uint64_t excess_ns, uint64_t bound_ns)
{
    uint64_t pause = least_of(least_of(excess_ns / 2, bound_ns / 16), MOST_PAUSE_NS);
    return pause > LEAST_PAUSE_NS ? pause : LEAST_PAUSE_NS;
}

/* How long to wait behind one kernel that is all that may be queued: looks come close together where it should end, so that
 * the GPU idles little, and further apart the longer it is overdue, since it then runs in the slices of others. */
static uint64_t until_done(const struct queue *queue, uint64_t now_ns)
{
    uint64_t end = most_of(queue->begin_ns, queue->cursor_ns) + queue->solo_ns;
    uint64_t away = end > now_ns ? end - now_ns : now_ns - end;
    return most_of(least_of(away / 4, MOST_PAUSE_NS), LEAST_PAUSE_NS);
}

/* What a launch waits for: room behind what its own process has in flight, as behind a driver's full queue; or its turn,
 * and until it has paid for what it took of others'. */
enum reason { ROOM, TURN, REASONS };

/* What a process may launch now: work for so long, but at least one kernel. 0: wait for `pause_ns` and ask again. Room is
 * waited for only while `room_matters`. */
static uint64_t allowed(struct queue *queue, uint64_t now_ns, bool room_matters, enum reason *reason, uint64_t *pause_ns)
{
    struct turn turn;
    uint64_t others = account_contenders(queue->index); /* they fill the GPU's queue, too */
    bool turns = pacer_look(queue->index, now_ns, &turn);
    uint64_t left = turns && turn.open ? turn.end_ns - now_ns : 0;
    bool alone = !turns || left >= turn.period_ns;
    uint64_t bound = alone ? most_of(queue->mean_ns, ALONE_NS / others) : may_queue(left, queue->mean_ns, others);
    uint64_t queued = queue->in_flight_ns + queue->granted_ns, ahead = queued + queue->mean_ns;
    bool unknown = queue->mean_ns == 0; /* one kernel alone, until it has told how long it takes */
    *reason = ROOM;
    if (room_matters && (queue->head != queue->tail || queue->granted_ns != 0) && (unknown || ahead > bound)) {
        bool single = bound == queue->mean_ns;
        *pause_ns = unknown ? LEAST_PAUSE_NS : single ? until_done(queue, now_ns) : until_room(ahead - bound, bound);
        return 0;
    }
    /* Half of it: other threads and streams are granted theirs from what is left. */
    uint64_t room = bound > queued ? (bound - queued + queue->mean_ns) / 2 : 1;
    *reason = TURN;
    if (alone)
        return least_of(room, BATCH_NS);
    if (!turn.open || in_debt(queue, &turn)) {
        *pause_ns = turn.open ? 1000000 : turn.end_ns - now_ns;
        return 0;
    }
    /* To stop in time would leave the GPU idle for half a kernel at the end of each turn. What runs over is paid back. */
    uint64_t until_end = left / others, needed = queued + queue->mean_ns / 4;
    if (needed > until_end && queue->mean_ns < turn.per_period_ns) {
        *pause_ns = left + 1000;
        return 0;
    }
    uint64_t in_time = until_end > queued ? until_end - queued : 1;
    return least_of(least_of(room, in_time), BATCH_NS / others);
}

/* Waits for admission; under the queue's lock, which is let go meanwhile. For each reason it waits as long as a hold may
 * be, and no longer. Returns what is allowed, ns; 0: it was let go for that, or the context has ended. */
static uint64_t hold(struct queue *queue)
{
    uint64_t now = clock_ns(), pause = 0, serial = queue->serial, work = 0, waited[REASONS] = {0, 0};
    bool pushed;
    while (queue->serial == serial) {
        enum reason reason;
        if (spans_enter(queue, &pushed)) {
            spans_reap(queue);
            spans_leave(pushed);
        }
        work = allowed(queue, now, waited[ROOM] < VCUDA_HOLD_LIMIT_NS, &reason, &pause);
        if (work != 0 || waited[reason] >= VCUDA_HOLD_LIMIT_NS)
            break;
        account_active(queue->index, now, true);
        bool granted = reason == ROOM && queue->granted_ns != 0;
        pthread_mutex_unlock(&queue->lock);
        if (granted)
            batches_close_all_of(queue);
        wait_ns(least_of(pause, VCUDA_HOLD_LIMIT_NS - waited[reason]));
        pthread_mutex_lock(&queue->lock);
        uint64_t after = clock_ns();
        waited[reason] += after - now;
        now = after;
    }
    if (waited[TURN] != 0)
        __atomic_add_fetch(&ledger->devices[queue->index].throttled_ns, waited[TURN], __ATOMIC_RELAXED);
    return work;
}

static uint32_t grant(const struct queue *queue, uint64_t work_ns)
{
    if (queue->mean_ns == 0)
        return 1;
    uint64_t number = work_ns / queue->mean_ns;
    return number < 1 ? 1 : number > MOST_GRANTED ? MOST_GRANTED : (uint32_t)number;
}

/* Grants a batch; true where it is of one launch, which is measured by itself. */
static bool admit(CUstream stream, struct batch *batch, CUcontext context, int index)
{
    batches_register_thread();
    batches_close(batch, 0);
    struct queue *queue = spans_queue(context, index);
    if (queue == NULL)
        return false;
    uint64_t work = hold(queue);
    bool single = false;
    if (queue->context == context) {
        bool sample = spans_begin(queue, stream);
        uint64_t now = clock_ns();
        account_active(index, now, false);
        __atomic_store_n(&batch->stream, stream, __ATOMIC_RELAXED);
        batch->serial = queue->serial;
        batch->opened_ns = now;
        uint32_t granted = sample || batches_any_captures() ? 1 : grant(queue, work);
        __atomic_store_n(&batch->granted, granted, __ATOMIC_RELAXED);
        batch->granted_ns = granted * most_of(queue->mean_ns, 1);
        queue->granted_ns += batch->granted_ns;
        single = granted == 1;
        __atomic_store_n(&batch->credits, granted - 1, __ATOMIC_RELAXED); /* the one that asked is the first */
        __atomic_store_n(&batch->queue, queue, __ATOMIC_RELEASE);
        __atomic_store_n(&batch->turn, __atomic_load_n(&pacer_gates[index].turn, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&queue->lock);
    helper_wake();
    return single;
}

bool pacer_admit_slowly(CUstream stream, struct batch *batch)
{
    CUcontext context;
    int index;
    uint32_t credits = __atomic_load_n(&batch->credits, __ATOMIC_RELAXED);
    uint64_t turn = __atomic_load_n(&batch->turn, __ATOMIC_RELAXED);
    if (batches_capturing(stream) || !stream_device(stream, &context, &index))
        return false;
    /* With several devices the fast way is never open: look again, now that the device is known. */
    const struct queue *open = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    if (open != NULL && batch->stream == stream && credits != 0 && turn != 0 &&
        __atomic_load_n(&open->context, __ATOMIC_RELAXED) == context &&
        turn == __atomic_load_n(&pacer_gates[index].turn, __ATOMIC_RELAXED)) {
        __atomic_store_n(&batch->credits, credits - 1, __ATOMIC_RELAXED);
        return false;
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode); /* our events and queries must not spoil a capture */
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    bool pushed = current != context && REAL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS; /* events are of the current */
    bool single = admit(stream, batch, context, index);
    spans_leave(pushed);
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return single;
}

void pacer_launched(CUstream stream)
{
    struct batch *batch = pacer_batch_of(stream);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    if (batch->stream == stream)
        batches_close(batch, 0);
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

void pacer_context_made(int index)
{
    if (config.device_count == 1)
        __atomic_store_n(&pacer_gate, &pacer_gates[index], __ATOMIC_RELAXED);
    helper_start();
}

void pacer_context_ends(CUcontext context)
{
    if (context != NULL)
        spans_forget(context);
}
