#include "memory/orphans.h"

#include "memory/charge.h"
#include "process.h"
#include "state.h"

void others_may_hold(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_export(ledger, slot, index, bytes);
}

void shared_with_others(enum kind kind, uint64_t key)
{
    struct allocation before;
    if (allocations_mark(&process()->allocations, kind, key, 1, &before) && before.extent == 0)
        others_may_hold(before.device, before.bytes);
}

void opened_of_others(int change)
{
    int slot = process()->slot;
    if (slot >= 0 && change != 0)
        ledger_import(ledger, slot, change);
}

void orphan(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0) {
        /* Without the lock, or a slot for it, it stays charged to this process for now. */
        if (ledger_orphan(ledger, slot, index, bytes))
            ledger_export(ledger, slot, index, -bytes);
        else
            __atomic_add_fetch(&process()->late[index].orphans, bytes, __ATOMIC_RELEASE);
        confirm(index, bytes);
    }
}

void give_up(const struct allocation *allocation)
{
    if (allocation_exported(allocation))
        orphan(allocation->device, allocation->bytes);
    else
        discharge(allocation->device, allocation->bytes);
}
