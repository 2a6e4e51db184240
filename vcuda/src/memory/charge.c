#include "memory/charge.h"

#include "clock.h"
#include "compiler.h"
#include "memory/deferred_frees.h"
#include "process.h"
#include "state.h"
#include "time/schedule_page.h"

uint64_t memory_limit(int index)
{
    uint64_t live = schedule_live_limit(index);
    return live != 0 ? live : config.devices[index].memory_limit_bytes;
}

#define LOOK_AGAIN_NS 5000000u
#ifndef CHARGE_WAIT_MS
#define CHARGE_WAIT_MS 10000 /* of one call, should processes die all the time */
#endif
static uint64_t looked_ns[VCUDA_MAX_DEVICES]; /* when this process last looked for the dead; atomic */

static bool write_charge(int slot, int index, uint64_t bytes)
{
    bool written = ledger_charge(ledger, slot, index, bytes, 0, true);
    if (written)
        ledger_confirm(ledger, slot, index, bytes);
    return written;
}

static bool write_discharge(int slot, int index, uint64_t bytes)
{
    return ledger_discharge(ledger, slot, index, bytes);
}

static bool write_orphans(int slot, int index, uint64_t bytes)
{
    bool written = ledger_orphan(ledger, slot, index, bytes);
    if (written)
        ledger_export(ledger, slot, index, -bytes);
    return written;
}

/* It counts as late until it is written: discharge() must not overtake a charge. */
static bool write_one(uint64_t *late, int index, bool (*write)(int slot, int index, uint64_t bytes))
{
    int slot = process()->slot;
    uint64_t bytes = __atomic_load_n(late, __ATOMIC_ACQUIRE);
    bool written = bytes == 0 || (slot >= 0 && write(slot, index, bytes));
    if (written && bytes != 0)
        __atomic_sub_fetch(late, bytes, __ATOMIC_RELEASE);
    return written;
}

static bool is_late(const uint64_t *late)
{
    return unlikely(__atomic_load_n(late, __ATOMIC_ACQUIRE) != 0);
}

void write_what_is_late(int index)
{
    struct late *late = &process()->late[index];
    if ((!is_late(&late->charges) && !is_late(&late->discharges) && !is_late(&late->orphans)) ||
        __atomic_exchange_n(&late->writing, 1, __ATOMIC_ACQUIRE) != 0)
        return;
    if (write_one(&late->charges, index, write_charge) && write_one(&late->discharges, index, write_discharge))
        write_one(&late->orphans, index, write_orphans);
    __atomic_store_n(&late->writing, 0, __ATOMIC_RELEASE);
}

/* A program that goes on asking looks but now and then. */
static void look_for_the_dead(int index)
{
    write_what_is_late(index);
    uint64_t now = clock_ns(), last = __atomic_load_n(&looked_ns[index], __ATOMIC_RELAXED);
    struct vcuda_slot page;
    if (now <= last + LOOK_AGAIN_NS ||
        !__atomic_compare_exchange_n(&looked_ns[index], &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    ledger_sweep(ledger);
    ledger_true_up(ledger, index, schedule_slot(index, &page) ? &page : NULL, clock_ns());
}

uint64_t memory_held(int index)
{
    look_for_the_dead(index);
    uint64_t held = ledger_held(ledger, index);
    return held - ledger_leaving(ledger, index, clock_ns());
}

static bool fits(int index, uint64_t bytes, uint64_t held)
{
    uint64_t limit = memory_limit(index);
    return bytes <= limit && held <= limit - bytes;
}

bool charge(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot < 0)
        return false;
    if (likely(ledger_charge(ledger, slot, index, bytes, memory_limit(index), false)))
        return true;
    deferred_frees_settle();
    look_for_the_dead(index);
    uint64_t until = clock_ns() + CHARGE_WAIT_MS * 1000000ull;
    bool charged = ledger_charge(ledger, slot, index, bytes, memory_limit(index), false);
    while (!charged && fits(index, bytes, memory_held(index)) && clock_ns() < until) {
        clock_sleep(LOOK_AGAIN_NS);
        look_for_the_dead(index);
        charged = ledger_charge(ledger, slot, index, bytes, memory_limit(index), false);
    }
    if (!charged)
        __atomic_add_fetch(&ledger->devices[index].oom, 1, __ATOMIC_RELAXED);
    return charged;
}

void charge_anyway(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot < 0 || ledger_charge(ledger, slot, index, bytes, 0, true))
        return;
    ledger_unsettle(ledger, slot, index, bytes); /* confirm() follows */
    __atomic_add_fetch(&process()->late[index].charges, bytes, __ATOMIC_RELEASE);
}

void want_sample(int index)
{
    uint64_t *wanted = &ledger->public.devices[index].sample_wanted_ns, now = clock_ns();
    uint64_t before = __atomic_load_n(wanted, __ATOMIC_RELAXED);
    if (before > now || now - before >= SAMPLE_EVERY_NS)
        __atomic_store_n(wanted, now, __ATOMIC_RELAXED);
}

void confirm(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_confirm(ledger, slot, index, bytes);
}

void unsettle(int index, uint64_t bytes)
{
    int slot = process()->slot;
    if (slot >= 0 && bytes != 0)
        ledger_unsettle(ledger, slot, index, bytes);
}

void discharge(int index, uint64_t bytes)
{
    int slot = process()->slot;
    struct late *late = &process()->late[index];
    if (slot < 0 || bytes == 0)
        return;
    write_what_is_late(index);
    if (is_late(&late->charges) || !ledger_discharge(ledger, slot, index, bytes))
        __atomic_add_fetch(&late->discharges, bytes, __ATOMIC_RELEASE);
}
