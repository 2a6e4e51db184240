/* ledger_sweep.c: processes that died, and the memory that the driver still holds for them. */
#include <stdlib.h>

#include "clock.h"
#include "identity.h"
#include "ledger.h"

/* Without word from the node (no fresh page, or one that never asked the driver) the dead are given this long to
 * be torn down before their memory counts as free. */
#define TEARDOWN_NS 5000000000u
#define SAMPLE_FRESH_NS 5000000000u

struct suspect {
    int slot;
    uint64_t pid, start_time;
};

void ledger_sweep(struct ledger *ledger)
{
    struct suspect *suspects = malloc(LEDGER_SLOTS * sizeof *suspects); /* too large for a stack that is not ours */
    int count = 0;
    uint64_t namespace = identity_namespace();
    uint64_t used = __atomic_load_n(&ledger->slots_used, __ATOMIC_RELAXED);

    /* A reading without the lock may be of a slot that changes hands; the identity is compared again below. */
    for (int i = 0; suspects != NULL && i < LEDGER_SLOTS && (uint64_t)i < used; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != SLOT_LIVE || slot->namespace != namespace)
            continue; /* pids of other namespaces mean nothing here: their own processes sweep them */
        struct suspect suspect = {i, slot->pid, slot->start_time};
        if (identity_gone((pid_t)suspect.pid, suspect.start_time))
            suspects[count++] = suspect;
    }
    bool locked = count != 0 && ledger_lock(ledger);
    for (int i = 0; locked && i < count; i++) {
        struct ledger_slot *slot = &ledger->slots[suspects[i].slot];
        if (slot->state == SLOT_LIVE && slot->pid == suspects[i].pid && slot->start_time == suspects[i].start_time) {
            slot->died_ns = clock_ns();
            __atomic_store_n(&slot->state, SLOT_DEAD, __ATOMIC_RELEASE);
        }
    }
    if (locked)
        ledger_unlock(ledger);
    free(suspects);
}

/* Under the lock: forgets up to `bytes` of what the dead that died before `before_ns` still have charged. */
static void release_dead(struct ledger *ledger, int device, uint64_t bytes, uint64_t before_ns)
{
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++) {
        struct ledger_slot *slot = &ledger->slots[i];
        if (slot->state != SLOT_DEAD || slot->died_ns >= before_ns)
            continue;
        uint64_t part = slot->charged[device] < bytes ? slot->charged[device] : bytes;
        bytes -= part;
        __atomic_store_n(&slot->charged[device], slot->charged[device] - part, __ATOMIC_RELEASE);
        ledger->devices[device].total -= part;
        bool empty = true;
        for (int other = 0; other < VCUDA_MAX_DEVICES; other++)
            empty = empty && slot->charged[other] == 0;
        if (empty)
            __atomic_store_n(&slot->state, SLOT_FREE, __ATOMIC_RELEASE);
    }
}

static uint64_t dead_bytes(const struct ledger *ledger, int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++)
        if (ledger->slots[i].state == SLOT_DEAD)
            sum += ledger->slots[i].charged[device];
    return sum;
}

/* The most that the living had charged without the driver holding it, since the last time this was asked. */
static uint64_t most_unsettled(struct ledger *ledger, int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++) {
        struct ledger_slot *slot = &ledger->slots[i];
        if (slot->state != SLOT_LIVE)
            continue;
        uint64_t most = __atomic_exchange_n(&slot->most_unsettled[device], 0, __ATOMIC_SEQ_CST);
        uint64_t now = __atomic_load_n(&slot->unsettled[device], __ATOMIC_SEQ_CST);
        sum += now > most ? now : most;
    }
    return sum;
}

/* The node's sample lies somewhere between the last one that we saw and now. In that time the total was between
 * `low` and `high`. So the driver held at least driver_bytes - high that nobody is charged for; and for the living it
 * held at least low - dead, less what was unsettled, so for the dead at most the rest. Both lean towards holding more against the container. */
void ledger_true_up(struct ledger *ledger, int device, const struct vcuda_slot *page, uint64_t now_ns)
{
    struct ledger_device *shared = &ledger->devices[device];
    bool sampled = page != NULL && page->driver_sampled_ns != 0 && page->driver_sampled_ns <= now_ns &&
                   now_ns - page->driver_sampled_ns < SAMPLE_FRESH_NS;
    if (sampled && __atomic_load_n(&shared->sampled_ns, __ATOMIC_RELAXED) == page->driver_sampled_ns)
        return;
    if (!ledger_lock(ledger))
        return;
    if (!sampled) {
        release_dead(ledger, device, UINT64_MAX, now_ns > TEARDOWN_NS ? now_ns - TEARDOWN_NS : 0);
    } else if (shared->sampled_ns != page->driver_sampled_ns) {
        uint64_t held = page->driver_bytes, dead = dead_bytes(ledger, device);
        uint64_t not_living = dead + most_unsettled(ledger, device);
        uint64_t living_low = shared->low > not_living ? shared->low - not_living : 0;
        uint64_t held_dead = held > living_low ? held - living_low : 0;
        if (held_dead <= dead) /* also when nothing is left to release: their slots become free */
            release_dead(ledger, device, dead - held_dead, page->driver_sampled_ns);
        uint64_t overhead = held > shared->high ? held - shared->high : 0;
        __atomic_store_n(&shared->overhead, overhead, __ATOMIC_RELAXED); /* ledger_held reads it unlocked */
        __atomic_store_n(&shared->sampled_ns, page->driver_sampled_ns, __ATOMIC_RELAXED); /* looked at unlocked above */
        shared->low = shared->high = shared->total;
        if (shared->total + overhead > shared->peak)
            shared->peak = shared->total + overhead;
    }
    __atomic_store_n(&ledger->public.devices[device].charged_bytes, shared->total, __ATOMIC_RELAXED);
    ledger_unlock(ledger);
}
