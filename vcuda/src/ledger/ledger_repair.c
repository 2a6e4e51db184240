/* ledger_repair.c: what cannot be true. The ledger is written to by programs that may die at any instruction, and lies in
 * memory that every program of the container can overwrite. */
#include "clock.h"
#include "ledger/ledger.h"

#define MOST_BYTES (1ull << 50) /* no GPU holds so much */

static bool slot_is_plausible(const struct ledger_slot *slot, uint64_t now_ns)
{
    if (slot->state > SLOT_DEAD || (slot->state == SLOT_DEAD && slot->died_ns > now_ns))
        return false;
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++)
        if (slot->charged[device] > MOST_BYTES || __atomic_load_n(&slot->unsettled[device], __ATOMIC_RELAXED) > MOST_BYTES ||
            __atomic_load_n(&slot->most_unsettled[device], __ATOMIC_RELAXED) > MOST_BYTES)
            return false;
    return true;
}

static uint64_t total_of(const struct ledger *ledger, int device)
{
    uint64_t total = 0;
    for (int i = 0; i < LEDGER_SLOTS; i++)
        if (ledger->slots[i].state != SLOT_FREE)
            total += ledger->slots[i].charged[device];
    return total;
}

bool ledger_plausible(const struct ledger *ledger)
{
    uint64_t now = clock_ns(), sums[VCUDA_MAX_DEVICES] = {0};
    if (ledger->slots_used > LEDGER_SLOTS)
        return false;
    for (uint64_t i = 0; i < LEDGER_SLOTS; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (slot->state == SLOT_FREE)
            continue;
        if (i >= ledger->slots_used || !slot_is_plausible(slot, now))
            return false;
        for (int device = 0; device < VCUDA_MAX_DEVICES; device++)
            sums[device] += slot->charged[device];
    }
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++) {
        const struct ledger_device *shared = &ledger->devices[device];
        if (shared->total != sums[device] || shared->overhead > MOST_BYTES || shared->peak > 2 * MOST_BYTES ||
            shared->departed > MOST_BYTES || shared->settled_ns > now)
            return false;
    }
    return true;
}

static void repair_slot(struct ledger_slot *slot, uint64_t now_ns)
{
    if (slot->state > SLOT_DEAD) {
        slot->died_ns = now_ns; /* as late as it can have been: without the node's word it is given its time */
        __atomic_store_n(&slot->state, SLOT_DEAD, __ATOMIC_RELEASE);
    }
    if (slot->state == SLOT_DEAD && slot->died_ns > now_ns)
        slot->died_ns = now_ns;
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++) {
        if (slot->charged[device] > MOST_BYTES)
            __atomic_store_n(&slot->charged[device], 0, __ATOMIC_RELEASE);
        if (__atomic_load_n(&slot->unsettled[device], __ATOMIC_RELAXED) > MOST_BYTES)
            __atomic_store_n(&slot->unsettled[device], 0, __ATOMIC_SEQ_CST);
    }
}

void ledger_repair(struct ledger *ledger)
{
    uint64_t now = clock_ns(), used = 0;
    for (uint64_t i = 0; i < LEDGER_SLOTS; i++)
        if (ledger->slots[i].state != SLOT_FREE) {
            repair_slot(&ledger->slots[i], now);
            used = i + 1;
        }
    if (ledger->slots_used > LEDGER_SLOTS || ledger->slots_used < used)
        __atomic_store_n(&ledger->slots_used, used, __ATOMIC_RELAXED);
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++) {
        struct ledger_device *shared = &ledger->devices[device];
        __atomic_store_n(&shared->total, total_of(ledger, device), __ATOMIC_RELAXED);
        if (shared->overhead > MOST_BYTES)
            __atomic_store_n(&shared->overhead, 0, __ATOMIC_RELAXED);
        if (shared->peak > 2 * MOST_BYTES)
            shared->peak = shared->total + shared->overhead;
        ledger_begin_window(ledger, device);
    }
}
