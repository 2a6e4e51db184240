/* account.c: atomics in the ledger, no lock: each counter stands for itself. */
#include "time/account.h"

#include "clock.h"
#include "least.h"
#include "process.h"
#include "state.h"

#define PEER_NS 10000000u /* a process counts as at work for so long after it last said so */
#define MOST_DEBT_PERIODS 20
#define MOST_BEFORE_NS 60000000000u /* nothing that others have in flight is believed to have begun longer before */
#define SAVED_PERIODS 4             /* credit goes on while a long kernel runs that is charged at its end */

static bool fresh(uint64_t seen_ns, uint64_t now_ns, uint64_t within_ns)
{
    return seen_ns != 0 && seen_ns + within_ns > now_ns;
}

/* Processes of this container with work on the device, at least one: they share a span. `since` is when the earliest of
 * what they have in flight began; UINT64_MAX: nothing is. */
struct peers {
    uint64_t count, since;
};

static struct peers peers(int index)
{
    struct peers found = {0, UINT64_MAX};
    uint64_t now = clock_ns(), used = __atomic_load_n(&ledger->slots_used, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < used && i < LEDGER_SLOTS; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_RELAXED) != SLOT_LIVE ||
            !fresh(__atomic_load_n(&slot->in_flight[index], __ATOMIC_RELAXED), now, PEER_NS))
            continue;
        uint64_t since = __atomic_load_n(&slot->in_flight_since[index], __ATOMIC_RELAXED);
        found.count++;
        if (since != 0 && since < found.since)
            found.since = since;
    }
    if (found.count == 0)
        found.count = 1;
    return found;
}

uint64_t account_contenders(int index)
{
    uint64_t count = 0, now = clock_ns(), used = __atomic_load_n(&ledger->slots_used, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < used && i < LEDGER_SLOTS; i++)
        count += __atomic_load_n(&ledger->slots[i].state, __ATOMIC_RELAXED) == SLOT_LIVE &&
                 fresh(__atomic_load_n(&ledger->slots[i].wanted[index], __ATOMIC_RELAXED), now, CONTENDER_NS);
    return count != 0 ? count : 1;
}

/* Parts of a stretch of time, in ns. */
struct parts {
    uint64_t own;   /* in the turn in which it began */
    uint64_t over;  /* of the rest, the container's part */
    uint64_t turns; /* what it has of each period */
    bool disturbed; /* it began early in a turn, into which others may have run over */
};

/* Work that goes on into a later turn of its own shares that with what others began in between: the GPU goes round by
 * context, of which each process has one as far as others know. */
static struct parts parts_of(int index, uint64_t begin_ns, uint64_t end_ns, uint64_t own)
{
    struct parts parts = {0, 0, UINT64_MAX, false};
    struct turn turn = {.active = 1};
    uint64_t at = begin_ns;
    while (at < end_ns) {
        if (!schedule_turn_now(index, at, &turn)) { /* no turns: all of it is its own */
            parts.own = end_ns - begin_ns;
            return parts;
        }
        parts.turns = turn.per_period_ns;
        if (at == begin_ns)
            parts.disturbed = turn.active > 1 && (!turn.open || turn.end_ns - at > turn.per_period_ns / 2);
        if (!turn.open || turn.end_ns <= at)
            break;
        at = turn.end_ns < end_ns ? turn.end_ns : end_ns;
    }
    parts.own = at - begin_ns;
    parts.over = (end_ns - at) * own / (own + turn.active - 1);
    return parts;
}

static void add(uint64_t *counter, uint64_t amount)
{
    __atomic_add_fetch(counter, amount, __ATOMIC_RELAXED);
}

/* Claims the time up to `end_ns` and returns up to where it was claimed before. */
static uint64_t claim(struct ledger_device *device, uint64_t end_ns)
{
    uint64_t claimed = __atomic_load_n(&device->claimed_ns, __ATOMIC_RELAXED);
    while ((claimed < end_ns || claimed > clock_ns()) &&
           !__atomic_compare_exchange_n(&device->claimed_ns, &claimed, end_ns, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return claimed < end_ns ? claimed : end_ns;
}

struct span_cost account_span(int index, uint64_t begin_ns, uint64_t end_ns, uint32_t launches, uint64_t solo_ns,
                              uint32_t beside)
{
    struct ledger_device *device = &ledger->devices[index];
    struct vcuda_activity *published = &ledger->public.devices[index];
    uint64_t length = end_ns - begin_ns, before = claim(device, end_ns);
    struct peers at_work = peers(index);
    at_work.count += beside;
    /* Spans are charged when they end. What began before this one and has not ended yet will find its beginning claimed. */
    uint64_t since = most_of(before, begin_ns < at_work.since ? begin_ns : at_work.since);
    if (since < begin_ns && begin_ns - since > MOST_BEFORE_NS)
        since = begin_ns;
    struct parts whole = parts_of(index, begin_ns, end_ns, at_work.count);
    struct parts own = parts_of(index, most_of(before, begin_ns), end_ns, at_work.count);
    struct parts charged = parts_of(index, since, end_ns, at_work.count);
    uint64_t busy = charged.own + charged.over, over = charged.over;
    uint64_t work = own.own + own.over, share = (whole.own + whole.over) / at_work.count;
    /* What fits into a turn had the GPU alone at times, and its shortest spans show how long it takes. */
    struct span_cost cost = {work > share ? work : share, length <= whole.turns ? length : 0, whole.disturbed, 0};
    if (solo_ns != 0 && whole.disturbed && busy > solo_ns && at_work.count == 1) {
        cost.cut_ns = solo_ns;
        over = (uint64_t)((double)over * (double)solo_ns / (double)busy);
        busy = solo_ns;
    }
    add(&device->launches, launches);
    add(&device->span_ns, most_of(length, busy));
    add(&device->busy_ns, busy);
    add(&device->overrun_ns, over);
    add(&published->launches, launches);
    add(&published->busy_ns, busy);
    add(&published->overrun_ns, over);
    __atomic_sub_fetch(&device->credit_ns, (int64_t)busy, __ATOMIC_RELAXED);
    return cost;
}

void account_launches(int index, uint32_t launches)
{
    add(&ledger->devices[index].launches, launches);
    add(&ledger->public.devices[index].launches, launches);
}

int64_t account_credit(int index, const struct turn *turn, uint64_t now_ns)
{
    struct ledger_device *device = &ledger->devices[index];
    uint64_t since = __atomic_load_n(&device->credited_ns, __ATOMIC_RELAXED);
    uint64_t own = turn->period_ns * config.devices[index].core_percent / 100;
    uint64_t each = turn->per_period_ns > own ? turn->per_period_ns : own;
    int64_t most = (int64_t)(SAVED_PERIODS * each), least = -(int64_t)(MOST_DEBT_PERIODS * turn->period_ns);
    /* One process of the container wins the swap and adds what the time was worth. */
    bool never = since > now_ns + 1000000000; /* overwritten: nothing was given that late */
    if ((never || now_ns > since + 1000000) &&
        __atomic_compare_exchange_n(&device->credited_ns, &since, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        uint64_t elapsed = never ? 0 : now_ns - since < 1000000000 ? now_ns - since : 1000000000;
        int64_t worth = (int64_t)(elapsed * each / turn->period_ns);
        int64_t credit = __atomic_load_n(&device->credit_ns, __ATOMIC_RELAXED), capped;
        do {
            if (__builtin_add_overflow(credit, worth, &capped) || capped > most)
                capped = most;
            else if (capped < least)
                capped = least;
        } while (!__atomic_compare_exchange_n(&device->credit_ns, &credit, capped, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
    return __atomic_load_n(&device->credit_ns, __ATOMIC_RELAXED);
}

void account_in_flight_since(int index, uint64_t since_ns)
{
    int slot = process()->slot;
    if (slot >= 0)
        __atomic_store_n(&ledger->slots[slot].in_flight_since[index], since_ns, __ATOMIC_RELAXED);
}

void account_active(int index, uint64_t now_ns, bool waiting)
{
    struct vcuda_activity *published = &ledger->public.devices[index];
    int slot = process()->slot;
    if (slot >= 0 && !waiting)
        __atomic_store_n(&ledger->slots[slot].in_flight[index], now_ns, __ATOMIC_RELAXED);
    if (slot >= 0)
        __atomic_store_n(&ledger->slots[slot].wanted[index], now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&published->activity_ns, now_ns, __ATOMIC_RELAXED);
    if (waiting)
        __atomic_store_n(&published->waiting_ns, now_ns, __ATOMIC_RELAXED);
}

void account_stands(int index, uint64_t now_ns)
{
    __atomic_store_n(&ledger->public.devices[index].activity_ns, now_ns, __ATOMIC_RELAXED);
}

bool account_held_elsewhere(int index, uint64_t begin_ns, uint64_t end_ns)
{
    bool held = false;
    for (int other = 0; other < (int)config.device_count; other++) {
        uint64_t waiting = __atomic_load_n(&ledger->public.devices[other].waiting_ns, __ATOMIC_RELAXED);
        held = held || (other != index && waiting > begin_ns && waiting < end_ns);
    }
    return held;
}
