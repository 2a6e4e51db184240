/* kill_at_every_instruction.c: a process is killed after N instructions of attaching, charging, discharging,
 * orphaning and detaching, for every N; then the ledger must be whole, and empty once the dead process's memory is released.
 *
 * One victim is stepped through to know the way. Those that are killed run, and stop by a breakpoint where the way leads
 * after N instructions: a step costs two changes of process, and there would be millions.
 *
 * Prints how many instructions were tried. Ends with 1 and one line at the first that leaves the ledger wrong.
 */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/ledger.h"
#include "loading/identity.h"

#define BYTES (64u << 20)
#define LONGEST 100000 /* instructions */

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

static pid_t begun(void (*lives)(uint64_t, uint64_t))
{
    pid_t child = fork();
    if (child == 0)
        victim(lives);
    waitpid(child, NULL, 0);
    return child;
}

static void ended(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Lets a stopped victim go on; false when it came to its end. */
static bool went_on(pid_t child, enum __ptrace_request how)
{
    int status;
    ptrace(how, child, NULL, NULL);
    waitpid(child, &status, 0);
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

#ifdef __x86_64__
#define COUNTER ((void *)offsetof(struct user_regs_struct, rip))
#define INT3 0xccL /* the program counter is behind it when it stops */

static uint64_t counter(pid_t child)
{
    return (uint64_t)ptrace(PTRACE_PEEKUSER, child, COUNTER, NULL);
}

/* Whether a fresh victim came where the way leads after `steps`: as often as the way does until then. */
static bool came_to(pid_t child, const uint64_t *way, long steps)
{
    void *place = (void *)way[steps];
    long code = ptrace(PTRACE_PEEKTEXT, child, place, NULL);
    bool came = true;
    for (long i = 0; i <= steps && came; i++) {
        if (way[i] != way[steps])
            continue;
        ptrace(PTRACE_POKETEXT, child, place, (void *)((code & ~0xffL) | INT3));
        came = went_on(child, PTRACE_CONT);
        ptrace(PTRACE_POKETEXT, child, place, (void *)code);
        ptrace(PTRACE_POKEUSER, child, COUNTER, place);
        came = came && (i == steps || went_on(child, PTRACE_SINGLESTEP));
    }
    return came;
}
#else
static uint64_t counter(pid_t child)
{
    return (uint64_t)child;
}

static bool came_to(pid_t child, const uint64_t *way, long steps)
{
    bool running = way != NULL;
    for (long i = 0; i < steps && running; i++)
        running = went_on(child, PTRACE_SINGLESTEP);
    return running;
}
#endif

/* Notes where a victim stands after each instruction, and returns how many there are to its end. */
static long walked(uint64_t *way, void (*lives)(uint64_t, uint64_t))
{
    pid_t child = begun(lives);
    long steps = 0;
    do {
        if (steps == LONGEST)
            die("the way has no end", steps);
        way[steps++] = counter(child);
    } while (went_on(child, PTRACE_SINGLESTEP));
    ended(child);
    return steps - 1;
}

/* Kills victims on their way, each `stride` instructions later than the one before, and one at its end. How many were
 * killed where they should be: now and then one takes another way, for it reads the clock. */
static long killed(void (*lives)(uint64_t, uint64_t), long stride)
{
    static uint64_t way[LONGEST];
    check(walked(way, lives)); /* the first finds an unused ledger, and goes another way */
    long tried = 0, length = walked(way, lives);
    check(length);
    for (long steps = 1; steps <= length; steps += stride) {
        pid_t child = begun(lives);
        tried += came_to(child, way, steps);
        ended(child);
        check(steps);
    }
    return tried;
}

int main(int count, char **arguments)
{
    char reason[128];
    bool not_now;
    long stride = count > 2 ? atol(arguments[2]) : 1;
    ledger = ledger_open(arguments[1], reason, sizeof reason, &not_now);
    if (ledger == NULL)
        die(reason, 0);
    printf("%ld\n", killed(charges, stride) + killed(orphans, stride));
    return 0;
}
