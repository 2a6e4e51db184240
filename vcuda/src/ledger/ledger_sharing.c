/* ledger_sharing.c: memory that other processes have open. Its maker pays for it. What outlives the maker's last reference is
 * charged to a slot without a process, dead from the beginning: the container's orphans. */
#include <string.h>

#include "clock.h"
#include "ledger/ledger.h"

#define MERGED_NS 200000000u /* orphans so close to each other share a slot: there are not many slots */

void ledger_export(struct ledger *ledger, int slot, int device, uint64_t bytes)
{
    __atomic_add_fetch(&ledger->sharing[slot].exported[device], bytes, __ATOMIC_RELAXED);
}

void ledger_import(struct ledger *ledger, int slot, int change)
{
    __atomic_add_fetch(&ledger->sharing[slot].imported, (uint64_t)change, __ATOMIC_RELAXED);
}

bool ledger_imports_open(const struct ledger *ledger, uint64_t died_since_ns)
{
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        bool there = slot->state == SLOT_LIVE || (slot->state == SLOT_DEAD && slot->died_ns >= died_since_ns);
        if (there && __atomic_load_n(&ledger->sharing[i].imported, __ATOMIC_RELAXED) != 0)
            return true;
    }
    return false;
}

static bool is_orphans(const struct ledger_slot *slot)
{
    return slot->state == SLOT_DEAD && slot->pid == 0;
}

/* Under the lock: where orphans of this moment go. An old slot of orphans serves when there is no free one: they are then
 * released together, the later for it. */
static int slot_of_orphans(struct ledger *ledger, uint64_t now_ns)
{
    int free = -1, old = -1, used = ledger->slots_used < LEDGER_SLOTS ? (int)ledger->slots_used : LEDGER_SLOTS;
    for (int i = 0; i < used; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        if (is_orphans(slot) && slot->start_time <= now_ns && now_ns - slot->start_time < MERGED_NS)
            return i;
        if (is_orphans(slot))
            old = i;
        if (free < 0 && slot->state == SLOT_FREE)
            free = i;
    }
    if (free < 0 && used < LEDGER_SLOTS)
        free = used;
    if (free < 0)
        return old;
    struct ledger_slot *slot = &ledger->slots[free];
    memset(slot, 0, sizeof *slot);
    memset(&ledger->sharing[free], 0, sizeof ledger->sharing[free]);
    slot->start_time = now_ns;
    if (ledger->slots_used < (uint64_t)free + 1)
        __atomic_store_n(&ledger->slots_used, (uint64_t)free + 1, __ATOMIC_RELAXED);
    return free;
}

bool ledger_orphan(struct ledger *ledger, int slot, int device, uint64_t bytes)
{
    uint64_t *word = &ledger->slots[slot].charged[device];
    if (!ledger_lock(ledger))
        return false;
    uint64_t now = clock_ns();
    int chosen = bytes <= *word ? slot_of_orphans(ledger, now) : -1;
    if (chosen >= 0) {
        struct ledger_slot *orphans = &ledger->slots[chosen];
        orphans->died_ns = now;
        __atomic_store_n(&orphans->state, SLOT_DEAD, __ATOMIC_RELEASE);
        ledger_export(ledger, chosen, device, bytes);
        /* Killed between these two, it is charged twice, until the node's next sample: never too little. */
        __atomic_store_n(&orphans->charged[device], orphans->charged[device] + bytes, __ATOMIC_RELEASE);
        __atomic_store_n(word, *word - bytes, __ATOMIC_RELEASE);
    }
    ledger_unlock(ledger);
    return chosen >= 0;
}
