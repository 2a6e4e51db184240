/* late_charges.c: what a process could not write while another kept the ledger locked is written once the lock can be had.
 *
 *     late_charges    for each case prints the MiB charged while the ledger is locked, those charged afterwards, and those unsettled
 *
 * Before each case the process holds 64 MiB of a container's 128. The last case is the end of the process.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "memory/charge.h"
#include "memory/orphans.h"
#include "played_driver.h"
#include "state.h"

#define MIB (1ull << 20)

static int locked, over; /* atomic: the ledger is locked; it is to be unlocked */
static pthread_t owner;

static void *keeps_it_locked(void *unused)
{
    if (!ledger_lock(ledger))
        return unused;
    __atomic_store_n(&locked, 1, __ATOMIC_RELEASE);
    wait_until(&over);
    ledger_unlock(ledger);
    return unused;
}

static void lock_it(void)
{
    locked = over = 0;
    pthread_create(&owner, NULL, keeps_it_locked, NULL);
    wait_until(&locked);
}

static void unlock_it(void)
{
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    pthread_join(owner, NULL);
}

static unsigned long long held(void)
{
    return ledger_held(ledger, 0) / MIB;
}

static void row(const char *name, unsigned long long before)
{
    printf("%s %llu %llu %llu\n", name, before, held(), ledger->slots[process()->slot].unsettled[0] / MIB);
    fflush(stdout);
}

static void hold(uint64_t bytes)
{
    if (charge(0, bytes))
        confirm(0, bytes);
}

static void give_back(uint64_t bytes)
{
    unsettle(0, bytes);
    discharge(0, bytes);
}

static void freed(void)
{
    lock_it();
    give_back(64 * MIB);
    unsigned long long before = held();
    unlock_it();
    write_what_is_late(0);
    row("freed", before);
}

/* Charged anyway, and freed, in the same time: the process had nothing else charged. */
static void grown_and_freed(void)
{
    give_back(64 * MIB);
    lock_it();
    charge_anyway(0, 80 * MIB);
    confirm(0, 80 * MIB);
    give_back(16 * MIB);
    unsigned long long before = held();
    unlock_it();
    give_back(8 * MIB);
    row("grown", before);
    give_back(56 * MIB);
}

static void asks(void)
{
    lock_it();
    give_back(64 * MIB);
    unsigned long long before = held();
    unlock_it();
    hold(128 * MIB);
    row("asked", before);
    give_back(128 * MIB);
}

static void released_but_shared(void)
{
    others_may_hold(0, 64 * MIB);
    lock_it();
    unsettle(0, 64 * MIB);
    orphan(0, 64 * MIB);
    unsigned long long before = ledger->slots[process()->slot].charged[0] / MIB;
    unlock_it();
    write_what_is_late(0);
    printf("shared %llu %llu %llu\n", before, ledger->slots[process()->slot].charged[0] / MIB, held());
    fflush(stdout);
}

int main(void)
{
    static void (*const cases[])(void) = {freed, grown_and_freed, asks, released_but_shared};
    if (!active())
        return 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hold(64 * MIB);
        cases[i]();
    }
    hold(32 * MIB);
    lock_it();
    give_back(32 * MIB);
    unlock_it();
    return 0;
}
