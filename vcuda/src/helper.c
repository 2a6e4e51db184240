/* helper.c: closes gates at the end of turns, accounts for finished work, trues up memory, writes the usage. */
#include "helper.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "capture_mode.h"
#include "clock.h"
#include "complain.h"
#include "process.h"
#include "state.h"
#include "time/pacer.h"
#include "time/schedule_page.h"
#include "usage_file.h"
#include "wakeup.h"

#define BUSY_PAUSE_NS 2000000u   /* while work is in flight */
#define IDLE_PAUSE_NS 250000000u /* otherwise: memory is trued up well within a second */
#define CARE_NS 200000000u       /* between looks at memory and the dead */
#define IDLE_AFTER 50            /* rounds without work before the long pause */
#define END_NS 1000000000u       /* that a program which ends waits for the helper: a busy machine may let it run late */
#define END_LOOK_NS 200000u      /* between looks whether it has ended */

/* 1 once the helper is known to live by the ledger (ledger_begin_life). Atomic. */
static int begun;

/* Set at exit, before the driver ends: calls into the driver afterwards would find it half torn down. Atomic. */
static int stopping, stopped;

static pid_t of; /* the process that has the helper: a child that it forks has none. Written before there is one */

/* Work that may wait: the first process of the container that comes here does it for all. */
static void take_care(uint64_t now)
{
    for (uint32_t i = 0; i < config.device_count; i++)
        write_what_is_late((int)i);
    schedule_open_missing(now);
    uint64_t last = __atomic_load_n(&ledger->swept_ns, __ATOMIC_RELAXED);
    if ((last > now || now - last > CARE_NS) &&
        __atomic_compare_exchange_n(&ledger->swept_ns, &last, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        ledger_sweep(ledger);
        for (uint32_t i = 0; i < config.device_count; i++) {
            struct vcuda_slot page;
            ledger_true_up(ledger, (int)i, schedule_slot((int)i, &page) ? &page : NULL, clock_ns());
        }
    }
    pools_settle(NULL); /* they shrink when streams are waited for */
    deferred_frees_settle();
    usage_write(false);
}

/* Looks at every device's turn; returns how long nothing will change by the clock. */
static uint64_t look(uint64_t now)
{
    uint64_t pause = BUSY_PAUSE_NS;
    for (uint32_t i = 0; i < config.device_count; i++) {
        struct turn turn;
        if (pacer_look((int)i, now, &turn) && turn.open && turn.end_ns - now < pause)
            pause = turn.end_ns - now;
    }
    return pause;
}

static void *work(void *unused)
{
    uint64_t cared = 0;
    int quiet = 0, slot = process()->slot;
    bool lives = slot >= 0 && ledger_begin_life(ledger, slot);
    __atomic_store_n(&begun, 1, __ATOMIC_RELEASE);
    prctl(PR_SET_NAME, "vcuda");
    prctl(PR_SET_TIMERSLACK, 1000ul);
    capture_mode_relaxed();
    while (__atomic_load_n(&stopping, __ATOMIC_ACQUIRE) == 0) {
        uint64_t now = clock_ns(), pause = look(now);
        quiet = pacer_collect(false) ? 0 : quiet + 1;
        if (now > cared + CARE_NS) {
            take_care(now);
            cared = now;
        } else if (pools_shrinking(now)) {
            pools_settle(NULL);
            deferred_frees_settle();
            quiet = 0;
        }
        if (quiet > IDLE_AFTER)
            wakeup_wait(IDLE_PAUSE_NS);
        else
            nanosleep(&(struct timespec){0, (long)pause}, NULL);
    }
    for (int i = 0; i < 5 && pacer_collect(true); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL); /* what is as good as done still counts */
    if (lives)
        ledger_end_life(ledger, slot);
    __atomic_store_n(&stopped, 1, __ATOMIC_RELEASE);
    return unused;
}

/* A helper that waits in the driver is left there. */
static void wait_for_its_end(void)
{
    __atomic_store_n(&stopping, 1, __ATOMIC_RELEASE);
    wakeup_end();
    for (uint64_t until = clock_ns() + END_NS; __atomic_load_n(&stopped, __ATOMIC_ACQUIRE) == 0 && clock_ns() < until;)
        nanosleep(&(struct timespec){0, END_LOOK_NS}, NULL);
}

static void stop(void)
{
    if (getpid() == of)
        wait_for_its_end();
    usage_write(true);
}

void helper_start(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (likely(__atomic_load_n(&process()->has_helper, __ATOMIC_RELAXED) != 0) ||
        __atomic_exchange_n(&process()->has_helper, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    wakeup_begin();
    of = getpid();
    __atomic_store_n(&stopping, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&stopped, 0, __ATOMIC_RELEASE);
    atexit(stop); /* after the driver was loaded, and so before it is unloaded */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: no handler of the program's ever runs on it */
    __atomic_store_n(&begun, 0, __ATOMIC_RELEASE);
    bool made = pthread_create(&thread, NULL, work, NULL) == 0;
    if (made)
        pthread_detach(thread);
    else
        complain("no helper thread: launches are paced by their own threads, usage is not written");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* Killed before, the process would not be found dead from another pid namespace. */
    for (int i = 0; made && i < 5000 && __atomic_load_n(&begun, __ATOMIC_ACQUIRE) == 0; i++)
        nanosleep(&(struct timespec){0, 20000}, NULL);
}
