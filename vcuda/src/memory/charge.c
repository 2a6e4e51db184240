#include "charge.h"

#include "clock.h"
#include "compiler.h"
#include "process.h"
#include "schedule_page.h"
#include "state.h"

uint64_t memory_limit(int index)
{
    uint64_t live = schedule_live_limit(index);
    return live != 0 ? live : config.devices[index].memory_limit_bytes;
}

#define LOOK_AGAIN_NS 5000000u
static uint64_t looked_ns[VCUDA_MAX_DEVICES]; /* when this process last looked for the dead; atomic */

bool charge(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot < 0)
        return false;
    if (likely(ledger_charge(ledger, slot, index, bytes, memory_limit(index), false)))
        return true;
    /* Full, perhaps only with what dead processes held. A program that goes on asking looks but now and then. */
    uint64_t now = clock_ns(), last = __atomic_load_n(&looked_ns[index], __ATOMIC_RELAXED);
    if (now > last + LOOK_AGAIN_NS &&
        __atomic_compare_exchange_n(&looked_ns[index], &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        struct vcuda_slot page;
        ledger_sweep(ledger);
        ledger_true_up(ledger, index, schedule_slot(index, &page) ? &page : NULL, clock_ns());
        if (ledger_charge(ledger, slot, index, bytes, memory_limit(index), false))
            return true;
    }
    __atomic_add_fetch(&ledger->devices[index].oom, 1, __ATOMIC_RELAXED);
    return false;
}

void charge_anyway(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0)
        ledger_charge(ledger, slot, index, bytes, 0, true);
}

void confirm(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_confirm(ledger, slot, index, bytes);
}

void loosen(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_loosen(ledger, slot, index, bytes);
}

void discharge(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_discharge(ledger, slot, index, bytes);
}
