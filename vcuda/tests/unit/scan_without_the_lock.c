/* scan_without_the_lock.c: a sweep looks at each process that may be gone while the ledger's lock is free.
 *
 *     scan_without_the_lock LEDGER      prints "LOOKS LOCKED DEAD": the looks, those under the lock, and the slots found
 *                                       dead
 *
 * The linker puts the functions of this file before the two by which a sweep looks (tests.mk).
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger/ledger.h"
#include "loading/identity.h"

#define MIB (1ull << 20)
#define SLOTS 3

static struct ledger *ledger;
static int looks, locked;

bool __real_identity_gone(pid_t pid, uint64_t start_time);
bool __wrap_identity_gone(pid_t pid, uint64_t start_time);
bool __real_ledger_life_ended(struct ledger *of, int slot, uint64_t now_ns);
bool __wrap_ledger_life_ended(struct ledger *of, int slot, uint64_t now_ns);

static void look(void)
{
    looks++;
    if (pthread_mutex_trylock(&ledger->lock) == 0)
        pthread_mutex_unlock(&ledger->lock);
    else
        locked++;
}

bool __wrap_identity_gone(pid_t pid, uint64_t start_time)
{
    look();
    return __real_identity_gone(pid, start_time);
}

bool __wrap_ledger_life_ended(struct ledger *of, int slot, uint64_t now_ns)
{
    look();
    return __real_ledger_life_ended(of, slot, now_ns);
}

static pid_t gone(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child < 0 || waitpid(child, NULL, 0) != child)
        abort();
    return child;
}

int main(int argc, char **argv)
{
    char reason[256];
    bool not_now;
    ledger = argc == 2 ? ledger_open(argv[1], reason, sizeof reason, &not_now) : NULL;
    if (ledger == NULL)
        return 2;
    uint64_t ours = identity_namespace();
    for (int i = 0; i < SLOTS; i++) {
        /* Two of processes that are no more, and one of another namespace, which is known to live by its helper's mutex alone. */
        int slot = ledger_attach(ledger, (uint64_t)gone(), 1, i == 0 ? ours + 1 : ours);
        if (slot < 0 || !ledger_charge(ledger, slot, 0, MIB, 1u << 30, false))
            return 2;
    }
    ledger_sweep(ledger);
    int dead = 0;
    for (int i = 0; i < SLOTS; i++)
        dead += ledger->slots[i].state == SLOT_DEAD;
    printf("%d %d %d\n", looks, locked, dead);
    return 0;
}
