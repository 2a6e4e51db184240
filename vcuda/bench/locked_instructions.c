/* locked_instructions.c: how many instructions an allocation and its release keep the container's ledger locked.
 *
 *     locked_instructions LEDGER      an empty file of VCUDA_LEDGER_SIZE; prints the number
 *
 * A child charges, confirms, and discharges as the hooks of cuMemAlloc and cuMemFree do; this process steps it through,
 * instruction by instruction, and counts those at which the lock has an owner. For x86-64, and the same on every machine.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ledger/ledger.h"
#include "loading/identity.h"

#define BYTES (1ull << 20)
#define LIMIT (1ull << 30)

static void pair(struct ledger *ledger, int slot)
{
    ledger_charge(ledger, slot, 0, BYTES, LIMIT, false);
    ledger_confirm(ledger, slot, 0, BYTES);
    ledger_unsettle(ledger, slot, 0, BYTES);
    ledger_discharge(ledger, slot, 0, BYTES);
}

static void program(struct ledger *ledger)
{
    int slot = ledger_attach(ledger, (uint64_t)getpid(), identity_start_time(getpid()), identity_namespace());
    pair(ledger, slot); /* what is done once only */
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    pair(ledger, slot);
    raise(SIGSTOP);
}

int main(int count, char **arguments)
{
    char reason[128];
    bool not_now;
    int status;
    unsigned long locked = 0;
    struct ledger *ledger = count == 2 ? ledger_open(arguments[1], reason, sizeof reason, &not_now) : NULL;
    if (ledger == NULL)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        program(ledger);
        _exit(0);
    }
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
        return 3;
    do {
        locked += (__atomic_load_n(&ledger->lock.__data.__lock, __ATOMIC_RELAXED) & FUTEX_TID_MASK) != 0;
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
    } while (waitpid(child, &status, 0) >= 0 && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("%lu\n", locked);
    return 0;
}
