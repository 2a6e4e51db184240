/* kill_at_every_instruction.c: a process is killed after N instructions of attaching, charging, discharging,
 * orphaning and detaching, for every N; then the ledger must be whole, and empty once the dead process's memory is released.
 *
 * Prints how many instructions were tried. Ends with 1 and one line at the first that leaves the ledger wrong.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "identity.h"
#include "ledger.h"

#define BYTES (64u << 20)

static struct ledger *ledger;

static void die(const char *what, long step)
{
    fprintf(stderr, "after %ld instructions: %s\n", step, what);
    exit(1);
}

static void begin(void)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
}

/* What is stepped through: everything between begin and the second stop. */
static void charges(uint64_t start, uint64_t namespace)
{
    begin();
    int slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    ledger_charge(ledger, slot, 0, BYTES, 1u << 30, false);
    ledger_charge(ledger, slot, 1, BYTES, 1u << 30, false);
    ledger_charge(ledger, slot, 0, 2ull << 30, 1u << 30, false);
    ledger_discharge(ledger, slot, 0, BYTES);
    ledger_detach(ledger, slot);
}

static void orphans(uint64_t start, uint64_t namespace)
{
    int slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    ledger_charge(ledger, slot, 1, BYTES, 1u << 30, false);
    ledger_export(ledger, slot, 1, BYTES);
    begin();
    ledger_orphan(ledger, slot, 1, BYTES / 2);
    ledger_detach(ledger, slot);
}

static void victim(void (*lives)(uint64_t, uint64_t))
{
    lives(identity_start_time(getpid()), identity_namespace());
    raise(SIGSTOP); /* the end of what is stepped through */
    _exit(0);
}

static uint64_t sum_of_words(int device)
{
    uint64_t sum = 0;
    for (int i = 0; i < LEDGER_SLOTS; i++)
        if (ledger->slots[i].state != SLOT_FREE)
            sum += ledger->slots[i].charged[device];
    return sum;
}

static void check(long step)
{
    static const uint64_t most[] = {BYTES, BYTES + BYTES / 2}; /* an orphan may be charged twice, never not at all */
    if (!ledger_lock(ledger))
        die("the lock cannot be had", step);
    for (int device = 0; device < 2; device++)
        if (ledger->devices[device].total != sum_of_words(device) || ledger->devices[device].total > most[device])
            die("the total is not what the processes hold", step);
    ledger_unlock(ledger);
    ledger_sweep(ledger);
    for (int device = 0; device < 2; device++) {
        struct vcuda_slot page = {.driver_bytes = 0, .driver_sampled_ns = clock_ns() + (uint64_t)step};
        ledger_true_up(ledger, device, &page, page.driver_sampled_ns);
        if (ledger->devices[device].total != 0 || sum_of_words(device) != 0)
            die("bytes of the dead are still charged after the driver released them", step);
    }
    for (int i = 0; i < LEDGER_SLOTS; i++)
        if (ledger->slots[i].state != SLOT_FREE)
            die("a slot is still taken by the dead", step);
}

/* Kills a fresh victim after `step` instructions; false when it had come to its end before. */
static bool kill_after(long step, void (*lives)(uint64_t, uint64_t))
{
    int status;
    pid_t child = fork();
    if (child == 0)
        victim(lives);
    waitpid(child, &status, 0);
    bool running = true;
    for (long i = 0; i < step && running; i++) {
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        waitpid(child, &status, 0);
        running = WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return running;
}

int main(int count, char **arguments)
{
    char reason[128];
    long stride = count > 2 ? atol(arguments[2]) : 1, tried = 0;
    void (*const lives[])(uint64_t, uint64_t) = {charges, orphans};
    ledger = ledger_open(arguments[1], reason, sizeof reason);
    if (ledger == NULL)
        die(reason, 0);
    for (int i = 0; i < 2; i++) {
        long step = 1;
        for (; kill_after(step, lives[i]); step += stride)
            check(step);
        check(step);
        tried += step / stride;
    }
    printf("%ld\n", tried);
    return 0;
}
