/* pacer.c: a thread that asks gets a batch in the container's turn, while the container has credit and little in flight. A
 * batch becomes a span when it is used up, goes quiet or loses its stream. */
#include "time/pacer.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "clock.h"
#include "device.h"
#include "helper.h"
#include "least.h"
#include "state.h"
#include "time/account.h"
#include "time/captures.h"
#include "time/spans.h"
#include "wakeup.h"

#define IN_FLIGHT_NS 2000000u /* of work that a stream may have queued in a turn, or one kernel that is longer */
#define WAITER_NS 2000000u    /* after which what is in flight may be waiting for a launch that is held */
#define STANDS_NS 25000000u /* after which a stream that has not come to its work stands still: others have the GPU for less */
#define FOLLOWS_NS 1000000000u /* the same while it may wait for the process's own work in another stream */
#define QUIET_NS 2000000u      /* a batch that is open for longer is ended by the helper */
#define BATCH_NS 500000u       /* of estimated work granted at a time */
#define MOST_GRANTED 256u
#define LEAST_PAUSE_NS 20000u /* between looks of a thread that waits in the turn */
#define MOST_PAUSE_NS 250000u
#define USUAL_LATE_NS 100000u /* how late a machine wakes a thread that no other keeps from a processor; a virtual one, about */
#define MOST_LATE_NS 5000000u /* of one waking: what is later by more was no matter of the processors' load */
#define FEW 2u /* kernels of other streams, beside which one more may be launched as long as they fit into the turn */
#define NO_END (UINT64_MAX - 1) /* the gate of a turn that does not end */

__thread struct batch pacer_batches[BATCHES] __attribute__((tls_model("initial-exec")));

/* The blocks of all threads that have launched. `registry_lock` guards the list; taken before a queue's lock. No driver call
 * is made under it. */
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct registered {
    struct batch *batches;
    struct registered *next;
} *registry;
static pthread_key_t registry_key;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

struct gate pacer_gates[VCUDA_MAX_DEVICES];
static const struct gate never_open;

/* Ends a batch, whose launches become `part`: true where there are any, and the caller then sees to their end. */
static bool take_batch(struct batch *batch, struct part *part)
{
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    bool any = false;
    if (queue == NULL)
        return false;
    pthread_mutex_lock(&queue->lock);
    if (__atomic_load_n(&batch->queue, __ATOMIC_RELAXED) == queue) { /* no other thread has ended it meanwhile */
        __atomic_store_n(&batch->turn, 0, __ATOMIC_RELAXED);
        uint32_t launches = batch->granted - __atomic_load_n(&batch->credits, __ATOMIC_RELAXED);
        CUstream stream = __atomic_load_n(&batch->stream, __ATOMIC_RELAXED);
        if (batch->serial == queue->serial) {
            queue->granted_ns -= batch->granted_ns;
            batch->flow->granted_ns -= batch->granted_ns;
            *part = (struct part){.flow = batch->flow,
                                  .stream = stream != NULL ? stream : CU_STREAM_LEGACY,
                                  .launches = launches,
                                  .estimate_ns = queue->estimate.mean_ns * launches,
                                  .opened_ns = batch->opened_ns,
                                  .serial = batch->serial};
            any = launches != 0;
            if (any) {
                part->flow->in_flight_ns += part->estimate_ns;
                queue->in_flight_ns += part->estimate_ns;
            } else {
                spans_flow_back(part->flow);
            }
        }
        __atomic_store_n(&batch->queue, NULL, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&queue->lock);
    return any;
}

/* Ends a batch that is older than `older_ns` without recording an event. True if it is left open. */
static bool close_batch(struct batch *batch, uint64_t older_ns)
{
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    struct part part;
    if (queue == NULL)
        return false;
    pthread_mutex_lock(&queue->lock);
    bool open =
        __atomic_load_n(&batch->queue, __ATOMIC_RELAXED) == queue && older_ns != 0 && clock_ns() < batch->opened_ns + older_ns;
    pthread_mutex_unlock(&queue->lock);
    if (open)
        return true;
    if (take_batch(batch, &part)) {
        pthread_mutex_lock(&queue->lock);
        if (queue->serial == part.serial)
            spans_end_unseen(queue, &part);
        pthread_mutex_unlock(&queue->lock);
    }
    return false;
}

/* Ends those of a queue, so that what was granted and is not used counts no more as in flight. Not those of one launch,
 * which end by themselves. */
static void close_batches_of(const struct queue *queue)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++) {
            struct batch *batch = &thread->batches[i];
            if (__atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE) == queue &&
                __atomic_load_n(&batch->granted, __ATOMIC_RELAXED) != 1)
                close_batch(batch, 0);
        }
    pthread_mutex_unlock(&registry_lock);
}

/* Of a thread that ends, once its block is forgotten: destructors of the program's may launch after that. */
static __thread bool ended __attribute__((tls_model("initial-exec")));

/* The thread ends, and its block, which goes with it, is forgotten. */
static void thread_ends(void *argument)
{
    struct registered *gone = argument;
    ended = true;
    pthread_mutex_lock(&registry_lock);
    for (struct registered **at = &registry; *at != NULL; at = &(*at)->next)
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    for (int i = 0; i < BATCHES; i++)
        close_batch(&gone->batches[i], 0);
    pthread_mutex_unlock(&registry_lock);
    free(gone);
}

/* In the child of a fork, which has no other thread and can use no context of its parent's: a lock that another thread held
 * stays so, and what it guards may be half changed. */
static void begin_anew(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    registry = NULL;
    captures_begin_anew();
    spans_begin_anew();
}

static void make_key_and_look_out_for_forks(void)
{
    pthread_key_create(&registry_key, thread_ends);
    pthread_atfork(NULL, NULL, begin_anew);
}

/* Before any lock of the pacer's, of the spans' or of the captures' is taken. */
static void prepare(void)
{
    pthread_once(&prepared, make_key_and_look_out_for_forks);
}

/* Makes this thread's batches known to the others. When the thread ends, their ends stay unrecorded: a thread that ends makes
 * no driver call. False: they are not known, and none may be left open. */
static bool register_thread(void)
{
    prepare();
    if (pthread_getspecific(registry_key) != NULL)
        return true;
    struct registered *ours = ended ? NULL : malloc(sizeof *ours);
    if (ours == NULL)
        return false;
    ours->batches = pacer_batches;
    pthread_mutex_lock(&registry_lock);
    ours->next = registry;
    registry = ours;
    pthread_mutex_unlock(&registry_lock);
    return pthread_setspecific(registry_key, ours) == 0;
}

/* Afterwards no thread launches by a grant on the stream, and none asks the driver about it. */
static void forget_stream(CUstream stream)
{
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            if (__atomic_load_n(&thread->batches[i].stream, __ATOMIC_RELAXED) == stream)
                close_batch(&thread->batches[i], 0);
    pthread_mutex_unlock(&registry_lock);
    spans_leave_alone(stream);
}

/* Turns alone keep short kernels to their share, and the node settles what runs over their end. Kernels that fill a
 * good part of a turn, one of each process and context, must be paid for from the share itself. */
static bool in_debt(const struct queue *queue, const struct turn *turn, uint64_t contenders)
{
    int64_t credit = __atomic_load_n(&ledger->devices[queue->index].credit_ns, __ATOMIC_RELAXED);
    return credit <= 0 && queue->estimate.mean_ns * contenders > turn->per_period_ns / 2;
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

/* By how much more than usual the threads of this process have come too late to look again: where processors are busy they wait
 * for milliseconds to be woken. Atomic: what two threads learn at once may be half lost. */
static uint64_t lateness_ns;

static void learn_lateness(uint64_t late_ns)
{
    uint64_t known = __atomic_load_n(&lateness_ns, __ATOMIC_RELAXED);
    uint64_t seen = late_ns > USUAL_LATE_NS ? least_of(late_ns - USUAL_LATE_NS, MOST_LATE_NS) : 0;
    __atomic_store_n(&lateness_ns, known - known / 8 + seen / 8, __ATOMIC_RELAXED);
}

/* For how long to sleep in order to be back after `ns`: shorter by how late that will be, but for half of it at least. Where
 * the thread is woken in time for once, it would otherwise look again and again. */
static uint64_t asked_for(uint64_t ns)
{
    return ns - least_of(__atomic_load_n(&lateness_ns, __ATOMIC_RELAXED), ns / 2);
}

/* Sleeps as exactly as the kernel can; the thread's own timer slack is put back. */
static void wait_ns(uint64_t ns)
{
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1000ul);
    clock_sleep(least_of(ns, 999999999));
    if (slack > 0)
        prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}

/* How much work a stream may have in flight with so much left of the turn: one kernel, or 2 ms of shorter ones; close to the
 * turn's end less. Where several of the container share the turn, their parts of it, so that all are done at its end. A second
 * kernel behind one that runs is another matter (is_second). What is queued has to last until the next look at it, which comes
 * late. */
static uint64_t part_of_turn(uint64_t left_ns, uint64_t contenders, uint64_t late_ns)
{
    uint64_t part = contenders > 1 ? left_ns * 3 / 4 / contenders : left_ns / 2;
    return least_of(part + late_ns, left_ns / contenders);
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
    uint64_t end = most_of(queue->begin_ns, queue->cursor_ns) + queue->estimate.solo_ns;
    uint64_t away = end > now_ns ? end - now_ns : now_ns - end;
    return most_of(least_of(away / 4, MOST_PAUSE_NS), LEAST_PAUSE_NS);
}

/* What a launch waits for: room behind what its own stream has in flight, as behind a driver's full queue; room behind what
 * all streams of the process have, so that little outlives the turn; or its turn, and until it has paid for what it took of
 * others'. */
enum reason { ROOM, SUM, TURN, REASONS };

/* How long at most, for each of these, in all. What stands in another stream may wait for this launch: behind that it waits
 * no longer than WAITER_NS. */
static const uint64_t longest[REASONS] = {VCUDA_HOLD_LIMIT_NS, WAITER_NS, VCUDA_HOLD_LIMIT_NS};

/* One launch's wait. */
struct wait {
    struct flow *flow;
    enum reason reason;
    uint64_t pause_ns;
    uint64_t waited_ns[REASONS];
    uint64_t suspect;     /* what may have waited for this launch when the wait began (suspect_of) */
    uint64_t patience_ns; /* for how long that may go on before it counts as waiting for this launch */
    bool stands;          /* its own stream has not come to its work */
};

static bool has_room(const struct queue *queue, struct wait *wait, uint64_t now_ns, uint64_t bound, uint64_t queued)
{
    uint64_t ahead = queued + queue->estimate.mean_ns;
    if (queued == 0 || (queue->estimate.mean_ns != 0 && ahead <= bound))
        return true;
    bool single = bound == queue->estimate.mean_ns;
    wait->pause_ns = queue->estimate.mean_ns == 0 ? LEAST_PAUSE_NS /* one kernel alone, until it is known how long it takes */
                     : single                     ? until_done(queue, now_ns)
                                                  : until_room(ahead - bound, bound);
    return false;
}

/* Estimates are 0 until a kernel's time was measured: what is in flight counts all the same. */
static uint64_t queued_in(const struct flow *flow)
{
    return flow->in_flight_ns + flow->granted_ns + (flow->uses > 1);
}

static uint64_t queued_in_all(const struct queue *queue)
{
    return queue->in_flight_ns + queue->granted_ns + (queue->count != 0);
}

/* What of it is still to be done, at least one launch: a span counts whole until it ends, and of those of many streams that go
 * on side by side each may be half done. */
static uint64_t left_in_all(const struct queue *queue, uint64_t now_ns)
{
    uint64_t queued = queued_in_all(queue), worked = least_of(queued, spans_worked_ns(queue, now_ns));
    return most_of(queued - worked, least_of(queued, most_of(queue->estimate.mean_ns, 1)));
}

#define UNBOUNDED UINT64_MAX
#define STANDING (UNBOUNDED - 1)

/* What may be launched into a stream that stands still: the host function that it waits for may wait for this launch. What fits
 * into the turn goes at once; what does not, after a wait of WAITER_NS. 0: the stream moves, has stood for too short a time, or
 * may wait for a kernel of the process's own. */
static uint64_t allowed_behind(const struct queue *queue, uint64_t now_ns, struct wait *wait, uint64_t until_end)
{
    uint64_t since = spans_stands_since(queue, wait->flow), mean = queue->estimate.mean_ns;
    wait->stands = since != 0;
    if (since == 0 || now_ns < since + STANDS_NS)
        return 0;
    if (now_ns < since + FOLLOWS_NS && spans_goes_on_since(queue, wait->flow, since))
        return 0;
    bool fits = queued_in_all(queue) + mean / 4 <= until_end;
    return fits || wait->waited_ns[ROOM] + wait->waited_ns[SUM] + wait->waited_ns[TURN] >= WAITER_NS ? STANDING : 0;
}

/* Whether a launch would be the second in flight behind one kernel, and both end in the turn. Then the GPU need not idle until
 * the thread that waits for the first has woken up, which takes 50 us and more on a virtual machine. */
static bool is_second(const struct queue *queue, uint64_t queued, uint64_t until_end)
{
    uint64_t mean = queue->estimate.mean_ns;
    return mean != 0 && queued <= mean + mean / 4 && queued + mean <= until_end;
}

/* How much estimated work a thread is granted at a time. Where the GPU is through with each launch before the next, events take
 * most of the time for which launches seem to last, and each batch costs two. */
static uint64_t batch_of(const struct queue *queue)
{
    return queue->idled ? IN_FLIGHT_NS : BATCH_NS;
}

/* One look at what is in flight and at what is left of the turn, ns of work. */
struct view {
    struct turn turn;
    uint64_t contenders; /* processes of the container and contexts of this one that fill the GPU's queue, at least one */
    uint64_t mean;       /* of a launch */
    uint64_t until_end;  /* this process's part of what is left of the turn; 0: it is another's turn */
    uint64_t queued;     /* in flight and granted, in all streams */
    uint64_t to_do;      /* what of it the GPU has not done yet */
    uint64_t own;        /* in flight and granted in the stream */
    uint64_t own_bound;  /* what the stream may have of that, */
    uint64_t bound;      /* and all streams together; one launch always */
};

static struct view view_of(const struct queue *queue, const struct flow *flow, const struct turn *turn, uint64_t contenders,
                           uint64_t now_ns)
{
    uint64_t left = turn->open ? turn->end_ns - now_ns : 0, late = __atomic_load_n(&lateness_ns, __ATOMIC_RELAXED);
    uint64_t mean = queue->estimate.mean_ns, part = part_of_turn(left, contenders, late);
    /* Two of kernels up to 2 ms: what is launched behind the second may be what another GPU waits for. */
    uint64_t two = mean < IN_FLIGHT_NS ? 2 * mean + mean / 4 : 0;
    return (struct view){.turn = *turn,
                         .contenders = contenders,
                         .mean = mean,
                         .until_end = left / contenders,
                         .queued = queued_in_all(queue),
                         .to_do = left_in_all(queue, now_ns),
                         .own = queued_in(flow),
                         .own_bound = most_of(mean, least_of(part, most_of(IN_FLIGHT_NS, two) + late)),
                         .bound = most_of(mean, part)};
}

/* Behind what its own stream has in flight, and behind what all have. Not looked at any more once the launch has waited for it
 * as long as it may. */
static bool finds_room(const struct queue *queue, const struct view *view, struct wait *wait, uint64_t now_ns)
{
    if (is_second(queue, view->queued, view->until_end) || wait->waited_ns[ROOM] >= longest[ROOM])
        return true;
    wait->reason = ROOM;
    if (!has_room(queue, wait, now_ns, view->own_bound, view->own))
        return false;
    wait->reason = SUM;
    bool beside = view->own == 0 && view->queued <= FEW * view->mean && view->to_do + view->mean / 4 <= view->until_end;
    return beside || wait->waited_ns[SUM] >= longest[SUM] || has_room(queue, wait, now_ns, view->bound, view->to_do);
}

/* To stop in time would leave the GPU idle for half a kernel at the end of each turn. What runs over is paid back. */
static bool finds_its_turn(const struct queue *queue, const struct view *view, struct wait *wait, uint64_t now_ns)
{
    wait->reason = TURN;
    if (!view->turn.open || in_debt(queue, &view->turn, view->contenders)) {
        wait->pause_ns = view->turn.open ? 1000000 : view->turn.end_ns - now_ns;
        return false;
    }
    uint64_t needed = view->to_do + view->mean / 4, next_ns = view->turn.end_ns - now_ns + 1000;
    bool fits = needed <= view->until_end || view->mean >= view->turn.per_period_ns;
    if (!fits) /* what is in flight may be done sooner than expected */
        wait->pause_ns = view->to_do != 0 ? least_of(most_of(view->to_do / 2, LEAST_PAUSE_NS), next_ns) : next_ns;
    return fits;
}

/* Of its stream's room half: other threads are granted theirs from what is left. Of the room in all its part. */
static uint64_t granted_by(const struct queue *queue, const struct view *view)
{
    uint64_t room = view->own_bound > view->own ? (view->own_bound - view->own + view->mean) / 2 : 1;
    uint64_t shared = view->bound > view->to_do ? (view->bound - view->to_do) / spans_flows(queue) : 1;
    uint64_t in_time = view->until_end > view->to_do ? view->until_end - view->to_do : 1;
    return least_of(least_of(room, shared), least_of(in_time, batch_of(queue) / view->contenders));
}

/* What a process may launch now: work for so long, but at least one kernel; UNBOUNDED where no other process is at work, and
 * the driver's own queue is the bound. 0: wait for `pause_ns` and ask again. */
static uint64_t allowed(struct queue *queue, uint64_t now_ns, struct wait *wait)
{
    struct turn turn;
    uint64_t contenders = account_contenders(queue->index) + spans_contexts_beside(queue, now_ns - CONTENDER_NS);
    if (!pacer_look(queue->index, now_ns, &turn) || (turn.open && turn.end_ns - now_ns >= turn.period_ns))
        return UNBOUNDED;
    struct view view = view_of(queue, wait->flow, &turn, contenders, now_ns);
    uint64_t behind = allowed_behind(queue, now_ns, wait, view.until_end);
    if (behind != 0)
        return behind;
    if (!finds_room(queue, &view, wait, now_ns) || !finds_its_turn(queue, &view, wait, now_ns))
        return 0;
    return granted_by(queue, &view);
}

/* What may be waiting for a launch into this stream: the oldest span of another, or else what is in flight on the process's
 * other devices, where collectives wait for one another. 0: nothing. `estimate_ns` is what that should take. */
static uint64_t suspect_of(const struct queue *queue, const struct flow *flow, uint64_t *estimate_ns)
{
    uint64_t oldest = spans_oldest_of_others(queue, flow);
    *estimate_ns = queue->in_flight_ns;
    return oldest != 0 || config.device_count == 1 ? oldest : spans_on_other_devices(queue, estimate_ns);
}

/* Whether the launch may go before its turn: work of another stream takes longer than it can, so it may wait for this launch.
 * The launch is charged like an overrun. */
static bool awaited(struct queue *queue, const struct wait *wait)
{
    uint64_t estimate, oldest = suspect_of(queue, wait->flow, &estimate);
    if (oldest != 0 && oldest == queue->waiter)
        return true;
    if (oldest == 0 || oldest != wait->suspect || wait->waited_ns[TURN] < wait->patience_ns)
        return false;
    queue->waiter = oldest;
    return true;
}

/* Ends the batches of other streams and threads where that makes room: what a thread was granted and has not launched keeps no
 * GPU busy, and to sleep behind it is to let the GPU idle. The caller holds the queue's lock, which the function releases
 * meanwhile. */
static bool take_back_grants(struct queue *queue)
{
    uint64_t granted = queue->granted_ns;
    if (granted == 0)
        return false;
    pthread_mutex_unlock(&queue->lock);
    close_batches_of(queue);
    pthread_mutex_lock(&queue->lock);
    return queue->granted_ns < granted;
}

/* The context has or wants work. */
static void mark_active(struct queue *queue, uint64_t now_ns, bool waiting)
{
    __atomic_store_n(&queue->wanted_ns, now_ns, __ATOMIC_RELAXED);
    account_active(queue->index, now_ns, waiting);
}

/* Waits for `pause_ns`, without the lock and outside the driver; not where others give room back, which takes time that counts
 * as waiting, too. False: the context has ended. */
static bool pause_in(struct queue *queue, struct wait *wait, uint64_t *now, struct before *before)
{
    mark_active(queue, *now, true);
    if (wait->reason != TURN && take_back_grants(queue)) {
        uint64_t after = clock_ns();
        wait->waited_ns[wait->reason] += after - *now;
        *now = after;
        return true;
    }
    uint64_t waited = wait->waited_ns[wait->reason], most = longest[wait->reason],
             pause = least_of(wait->pause_ns, most - waited);
    if (wait->stands)
        pause = least_of(pause, WAITER_NS);
    if (wait->reason == TURN && wait->suspect != 0)
        pause = most_of(least_of(pause, wait->patience_ns > waited ? wait->patience_ns - waited : pause), LEAST_PAUSE_NS);
    pthread_mutex_unlock(&queue->lock);
    spans_leave(queue, before);
    uint64_t asked = asked_for(pause);
    wait_ns(asked);
    bool entered = spans_enter(queue, before);
    if (entered)
        spans_reap(queue);
    pthread_mutex_lock(&queue->lock);
    uint64_t after = clock_ns();
    learn_lateness(after - *now > asked ? after - *now - asked : 0);
    wait->waited_ns[wait->reason] += after - *now;
    if (wait->reason != ROOM) {
        queue->held_ns[0] = queue->held == wait->flow && queue->held_ns[1] + MOST_PAUSE_NS > *now ? queue->held_ns[0] : *now;
        queue->held_ns[1] = after;
        queue->held = wait->flow;
    }
    *now = after;
    return entered;
}

/* Waits for admission; the caller holds the queue's lock, which the function releases meanwhile. Returns what is allowed, ns;
 * 0: the launch has waited as long as it may. `entered` is false where the context has ended. */
static uint64_t hold(struct queue *queue, struct flow *flow, struct before *before, bool *entered)
{
    struct wait wait = {.flow = flow};
    uint64_t estimate, now = clock_ns(), work = 0, serial = queue->serial;
    wait.suspect = suspect_of(queue, flow, &estimate);
    wait.patience_ns = WAITER_NS + 4 * most_of(estimate, queue->estimate.mean_ns);
    while (*entered && queue->serial == serial) {
        work = allowed(queue, now, &wait);
        if (work != 0 || wait.waited_ns[wait.reason] >= longest[wait.reason] || (wait.reason == TURN && awaited(queue, &wait)))
            break;
        *entered = pause_in(queue, &wait, &now, before);
    }
    if (wait.waited_ns[TURN] != 0)
        __atomic_add_fetch(&ledger->devices[queue->index].throttled_ns, wait.waited_ns[TURN], __ATOMIC_RELAXED);
    return work;
}

/* An event takes a place in the stream's queue as a launch does, and a program may fill the queue before it lets the GPU begin:
 * with an event for each launch the queue would hold half as many. So where much is in flight batches are longer. */
#define GRANTED_WHEN_DEEP 32u

static uint32_t grant(const struct queue *queue, uint64_t work_ns, bool by_itself)
{
    uint32_t least = work_ns >= STANDING && queue->count >= DEEP ? GRANTED_WHEN_DEEP : 1;
    if (queue->estimate.mean_ns == 0 || by_itself)
        return least;
    uint64_t number = least_of(work_ns, batch_of(queue)) / queue->estimate.mean_ns;
    return number < least ? least : number > MOST_GRANTED ? MOST_GRANTED : (uint32_t)number;
}

/* Of a stream whose name means another one in each thread or context, the device is not known by the stream. */
static bool is_default(CUstream stream)
{
    return stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/* Under the lock. Returns the number of launches. */
static uint32_t open_batch(struct queue *queue, CUstream stream, struct batch *batch, struct flow *flow, uint32_t granted)
{
    uint64_t now = clock_ns();
    mark_active(queue, now, false);
    __atomic_store_n(&batch->stream, stream, __ATOMIC_RELAXED);
    batch->gate = config.device_count == 1 || !is_default(stream) ? &pacer_gates[queue->index] : &never_open;
    batch->flow = flow;
    batch->serial = queue->serial;
    batch->opened_ns = now;
    batch->waits = false;
    __atomic_store_n(&batch->granted, granted, __ATOMIC_RELAXED);
    batch->granted_ns = granted * most_of(queue->estimate.mean_ns, 1);
    flow->granted_ns += batch->granted_ns;
    queue->granted_ns += batch->granted_ns;
    __atomic_store_n(&batch->credits, granted - 1, __ATOMIC_RELAXED); /* the one that asked is the first */
    __atomic_store_n(&batch->queue, queue, __ATOMIC_RELEASE);
    __atomic_store_n(&batch->turn, __atomic_load_n(&pacer_gates[queue->index].turn, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    return granted;
}

/* What the thread's own batch became. It is ended by an event only where that stands right before a launch into the same
 * stream. */
static void end_before(struct queue *queue, CUstream stream, struct batch *batch)
{
    struct part part;
    if (__atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE) != queue || batch->stream != stream) {
        close_batch(batch, 0);
        spans_reap(queue);
    } else if (take_batch(batch, &part)) {
        spans_end(queue, &part);
    } else {
        spans_reap(queue);
    }
}

/* Grants a batch; true where it is of one launch, which is measured by itself. */
static bool admit(CUstream stream, struct batch *batch, CUcontext context, int index)
{
    struct before before;
    bool registered = register_thread();
    helper_start(); /* the context may have been made without the shim */
    struct queue *queue = spans_queue(context, index);
    if (queue == NULL || !spans_enter(queue, &before))
        return false;
    bool waits = batch->stream == stream && batch->waits;
    end_before(queue, stream, batch);
    pthread_mutex_lock(&queue->lock);
    uint64_t serial = queue->serial;
    struct flow *flow = spans_flow(queue, stream);
    bool entered = true, single = false;
    uint64_t work = hold(queue, flow, &before, &entered);
    bool there = entered && queue->serial == serial;
    pthread_mutex_unlock(&queue->lock);
    bool sample = there && spans_begin(queue, serial, stream, flow, work != UNBOUNDED || waits);
    pthread_mutex_lock(&queue->lock);
    if (there && queue->serial == serial) {
        /* No other thread can ask whether a thread's own default stream is done: each launch is measured by itself. */
        bool own = stream == CU_STREAM_PER_THREAD, alone = sample || !registered || captures_any();
        single = open_batch(queue, stream, batch, flow, alone ? 1 : grant(queue, work, own)) == 1;
    }
    pthread_mutex_unlock(&queue->lock);
    if (entered)
        spans_leave(queue, &before);
    wakeup_send();
    return single;
}

/* Of a default stream the fast way is never open with several devices, since its name means another stream on each: the
 * current context says which. */
static bool still_granted(CUstream stream, struct batch *batch)
{
    const struct queue *open = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    uint32_t credits = __atomic_load_n(&batch->credits, __ATOMIC_RELAXED);
    uint64_t turn = __atomic_load_n(&batch->turn, __ATOMIC_RELAXED);
    CUcontext current = NULL;
    if (open == NULL || batch->gate != &never_open || batch->stream != stream || credits == 0 || turn == 0 ||
        REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || __atomic_load_n(&open->context, __ATOMIC_RELAXED) != current ||
        turn != __atomic_load_n(&pacer_gates[open->index].turn, __ATOMIC_RELAXED))
        return false;
    __atomic_store_n(&batch->credits, credits - 1, __ATOMIC_RELAXED);
    return true;
}

static bool is_open(const struct batch *batch)
{
    return __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE) != NULL;
}

/* The row's first is another stream's. Its own thread has opened both, so that it may read when. */
struct batch *pacer_other_batch(struct batch *row, CUstream stream)
{
    struct batch *first = row, *second = row + 1;
    if (second->stream == stream)
        return second;
    bool older = !is_open(second) || second->opened_ns <= first->opened_ns;
    return is_open(first) && older ? second : first;
}

bool pacer_admit_slowly(CUstream stream, struct batch *batch)
{
    CUcontext context;
    int index;
    if (still_granted(stream, batch) || captures_into(stream) || !stream_device(stream, &context, &index))
        return false;
    return admit(stream, batch, context, index);
}

void pacer_launched(CUstream stream)
{
    struct batch *batch = pacer_batch_of(stream);
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    struct before before;
    struct part part;
    if (batch->stream != stream || queue == NULL || !spans_enter(queue, &before))
        return;
    if (take_batch(batch, &part))
        spans_end(queue, &part);
    spans_leave(queue, &before);
}

/* On the legacy stream an event is a barrier, which a wait is not. While some stream captures, this one may be about to join.
 * Where much is in flight the events would fill the stream's queue before the GPU may begin (GRANTED_WHEN_DEEP). */
void pacer_waits(CUstream stream)
{
    struct batch *batch = pacer_batch_of(stream);
    struct queue *queue = __atomic_load_n(&batch->queue, __ATOMIC_ACQUIRE);
    if (stream == NULL || stream == CU_STREAM_LEGACY || batch->stream != stream || captures_any())
        return;
    batch->waits = true;
    if (queue == NULL)
        return;
    pthread_mutex_lock(&queue->lock);
    bool deep = queue->count >= DEEP;
    pthread_mutex_unlock(&queue->lock);
    if (!deep)
        pacer_launched(stream);
}

void pacer_context_made(int index)
{
    (void)index;
    prepare();
    helper_start();
}

bool pacer_context_at(uint32_t i, int index, CUcontext *context)
{
    const struct queue *queue = spans_walk(i);
    CUcontext its = queue != NULL ? __atomic_load_n(&queue->context, __ATOMIC_ACQUIRE) : NULL;
    *context = its != NULL && queue->index == index ? its : NULL;
    return queue != NULL;
}

void pacer_context_ends(CUcontext context, bool is_alive)
{
    struct queue *queue;
    struct before before;
    if (context == NULL)
        return;
    prepare();
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        if (__atomic_load_n(&queue->context, __ATOMIC_ACQUIRE) != context)
            continue;
        close_batches_of(queue);
        if (is_alive && spans_enter(queue, &before)) {
            spans_reap(queue);
            spans_leave(queue, &before);
        }
    }
    spans_forget(context);
}

void pacer_context_ended(CUcontext context)
{
    prepare();
    captures_context_ended(context);
}

void pacer_stream_ends(CUstream stream)
{
    prepare();
    captures_end(stream);
    forget_stream(stream);
}

void pacer_capture_begins(CUstream stream)
{
    CUcontext context = NULL;
    int index;
    prepare();
    stream_device(stream, &context, &index);
    captures_begin(stream, context);
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++)
        pacer_set_gate(i, 0); /* all threads ask again: a stream may join the capture */
    forget_stream(stream);
}

void pacer_capture_ends(CUstream stream)
{
    prepare();
    captures_end(stream);
}

bool pacer_collect(bool all)
{
    bool busy = false;
    uint64_t now = clock_ns();
    struct queue *queue;
    struct before before;
    pthread_mutex_lock(&registry_lock);
    for (struct registered *thread = registry; thread != NULL; thread = thread->next)
        for (int i = 0; i < BATCHES; i++)
            busy = close_batch(&thread->batches[i], all ? 0 : QUIET_NS) || busy;
    pthread_mutex_unlock(&registry_lock);
    for (uint32_t i = 0; (queue = spans_walk(i)) != NULL; i++) {
        pthread_mutex_lock(&queue->lock);
        bool any = queue->context != NULL && queue->count != 0;
        pthread_mutex_unlock(&queue->lock);
        if (!any || !spans_enter(queue, &before))
            continue;
        spans_reap(queue);
        spans_leave(queue, &before);
        pthread_mutex_lock(&queue->lock);
        if (queue->context != NULL && queue->count != 0) {
            spans_charge_unfinished(queue, now);
            if (spans_all_stand(queue))
                account_stands(queue->index, now);
            else
                mark_active(queue, now, false);
            busy = true;
        }
        pthread_mutex_unlock(&queue->lock);
    }
    return busy;
}
