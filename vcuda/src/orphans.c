/* orphans.c: the container's orphans are charged to a slot of a process that never was, dead from the beginning. */
#include "orphans.h"

#include <string.h>

#include "clock.h"
#include "state.h"

void orphan(int index, uint64_t bytes)
{
    int own = process()->slot, chosen = -1;
    if (own < 0 || !ledger_lock(ledger))
        return;
    for (int i = 0; i < LEDGER_SLOTS && chosen < 0; i++)
        if (ledger->slots[i].state == SLOT_FREE)
            chosen = i;
    if (chosen >= 0) {
        struct ledger_slot *slot = &ledger->slots[chosen];
        memset(slot, 0, sizeof *slot);
        slot->died_ns = clock_ns();
        if (ledger->slots_used < (uint64_t)chosen + 1)
            __atomic_store_n(&ledger->slots_used, (uint64_t)chosen + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->state, SLOT_DEAD, __ATOMIC_RELEASE);
        /* Killed between these two, it is charged twice, until the node's next sample: never too little. */
        __atomic_store_n(&slot->charged[index], bytes, __ATOMIC_RELEASE);
        ledger_set_total(&ledger->devices[index], ledger->devices[index].total + bytes);
    }
    ledger_unlock(ledger);
    if (chosen >= 0)
        discharge(index, bytes);
    else
        confirm(index, bytes);
}
