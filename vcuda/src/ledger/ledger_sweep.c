/* ledger_sweep.c: processes that died, and the memory that the driver still holds for them. */
#include <stdlib.h>

#include "clock.h"
#include "least.h"
#include "ledger/ledger.h"
#include "loading/identity.h"

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
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != SLOT_LIVE)
            continue;
        struct suspect suspect = {i, slot->pid, slot->start_time};
        /* Pids of other namespaces mean nothing here. */
        bool gone = slot->namespace == namespace ? identity_gone((pid_t)suspect.pid, suspect.start_time)
                                                 : ledger_life_ended(ledger, i, clock_ns());
        if (gone)
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

/* Under the lock: forgets up to `bytes` of what the dead that died before `before_ns` still have charged; with
 * `but_exported` nothing of what others may have open. */
static void release_dead(struct ledger *ledger, int device, uint64_t bytes, uint64_t before_ns, bool but_exported)
{
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++) {
        struct ledger_slot *slot = &ledger->slots[i];
        if (slot->state != SLOT_DEAD || slot->died_ns >= before_ns)
            continue;
        uint64_t exported = __atomic_load_n(&ledger->sharing[i].exported[device], __ATOMIC_RELAXED);
        uint64_t kept = but_exported ? least_of(exported, slot->charged[device]) : 0;
        uint64_t part = least_of(slot->charged[device] - kept, bytes);
        bytes -= part;
        __atomic_store_n(&slot->charged[device], slot->charged[device] - part, __ATOMIC_RELEASE);
        ledger_set_total(&ledger->devices[device], ledger->devices[device].total - part);
        bool empty = true;
        for (int other = 0; other < VCUDA_MAX_DEVICES; other++)
            empty = empty && slot->charged[other] == 0;
        if (empty)
            __atomic_store_n(&slot->state, SLOT_FREE, __ATOMIC_RELEASE);
    }
}

uint64_t ledger_leaving(const struct ledger *ledger, int device, uint64_t now_ns)
{
    uint64_t sum = 0, used = __atomic_load_n(&ledger->slots_used, __ATOMIC_RELAXED);
    for (uint64_t i = 0; i < LEDGER_SLOTS && i < used; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != SLOT_DEAD || slot->pid == 0 ||
            slot->died_ns + TEARDOWN_NS < now_ns)
            continue;
        uint64_t charged = __atomic_load_n(&slot->charged[device], __ATOMIC_RELAXED);
        sum += charged - least_of(__atomic_load_n(&ledger->sharing[i].exported[device], __ATOMIC_RELAXED), charged);
    }
    return least_of(sum, ledger_held(ledger, device));
}

/* What is charged to those whose death was noticed before `sampled_ns`. */
static uint64_t dead_bytes(const struct ledger *ledger, int device, uint64_t sampled_ns)
{
    uint64_t sum = 0;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++)
        if (ledger->slots[i].state == SLOT_DEAD && ledger->slots[i].died_ns < sampled_ns)
            sum += ledger->slots[i].charged[device];
    return sum;
}

/* The most that may have been charged at the sample without the driver holding it, of all that may have lived then:
 * also of those that died or left since. */
static uint64_t unsettled_bytes(const struct ledger *ledger, int device, uint64_t sampled_ns)
{
    uint64_t sum = ledger->devices[device].departed;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (slot->state == SLOT_LIVE || (slot->state == SLOT_DEAD && slot->died_ns >= sampled_ns))
            sum += ledger_most_unsettled(slot, device);
    }
    return sum;
}

/* Of the dead of so long ago the driver holds what others may have open, and no more: it named none of them. By its totals that
 * does not show while it holds memory of others that is in no process's figure, as managed memory may be. */
static void release_gone(struct ledger *ledger, int device, uint64_t gone_ns)
{
    if (gone_ns > TEARDOWN_NS)
        release_dead(ledger, device, UINT64_MAX, gone_ns - TEARDOWN_NS, true);
}

static uint64_t above(uint64_t bytes, uint64_t others)
{
    return bytes > others ? bytes - others : 0;
}

/* The bytes charged to the dead that the driver no longer held at a sample in the window. At that moment the total was
 * `low` or more, and the driver held all that live processes had charged and settled: what it did not hold of the rest was
 * the dead's. Nor did it hold more of the dead's than was charged to them by then. */
static uint64_t released(const struct ledger *ledger, int device, uint64_t held, uint64_t sampled_ns)
{
    uint64_t by_total = above(ledger->devices[device].low, held + unsettled_bytes(ledger, device, sampled_ns));
    uint64_t by_dead = above(dead_bytes(ledger, device, sampled_ns), held);
    return by_total > by_dead ? by_total : by_dead;
}

/* A sample is read from the driver at some moment between its time and now. It is of use only when it was begun in the
 * window, since of earlier moments nothing is noted. `high` is the most that was charged in it: what the driver held
 * beyond that, no process is charged for. */
void ledger_true_up(struct ledger *ledger, int device, const struct vcuda_slot *page, uint64_t now_ns)
{
    struct ledger_device *shared = &ledger->devices[device];
    bool sampled = page != NULL && page->driver_sampled_ns != 0 && page->driver_sampled_ns <= now_ns &&
                   now_ns - page->driver_sampled_ns < SAMPLE_FRESH_NS;
    if (sampled && page->driver_sampled_ns <= __atomic_load_n(&shared->settled_ns, __ATOMIC_RELAXED))
        return;
    if (!ledger_lock(ledger))
        return;
    if (!ledger_plausible(ledger))
        ledger_repair(ledger);
    if (!sampled) {
        uint64_t before_ns = now_ns > TEARDOWN_NS ? now_ns - TEARDOWN_NS : 0;
        release_dead(ledger, device, UINT64_MAX, before_ns, ledger_imports_open(ledger, before_ns));
    } else if (page->driver_sampled_ns > shared->settled_ns) { /* another process may have used it by now */
        uint64_t held = page->driver_bytes;
        uint64_t overhead = above(held, shared->high);
        /* Also when the driver released nothing: slots of the dead with nothing left in them become free. */
        release_dead(ledger, device, released(ledger, device, held, page->driver_sampled_ns), page->driver_sampled_ns, false);
        release_gone(ledger, device, least_of(page->dead_gone_ns, page->driver_sampled_ns));
        __atomic_store_n(&shared->overhead, overhead, __ATOMIC_RELAXED); /* ledger_held reads it unlocked */
        ledger_begin_window(ledger, device);
        if (shared->total + overhead > shared->peak)
            shared->peak = shared->total + overhead;
    }
    __atomic_store_n(&ledger->public.devices[device].charged_bytes, shared->total, __ATOMIC_RELAXED);
    ledger_unlock(ledger);
}
