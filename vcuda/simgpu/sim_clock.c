#include "sim_clock.h"

#include <errno.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

/* Timers fire at most this late for threads of the default slack; below it waiting is spinning. */
#define SLACK_NS 60000ULL

static void sim_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint64_t sim_real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

uint64_t sim_now(struct sim_node *node)
{
    uint64_t now = sim_real_ns();
    if (node->settings.fast_clock) {
        now += __atomic_load_n(&node->clock_offset_ns, __ATOMIC_ACQUIRE);
    }
    return now;
}

static void sleep_real(uint64_t moment_ns)
{
    static __thread int sharpened;
    if (!sharpened) { /* the default slack of 50 us would make every wait that much longer */
        prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
        sharpened = 1;
    }
    struct timespec until = {.tv_sec = (time_t)(moment_ns / 1000000000ULL), .tv_nsec = (long)(moment_ns % 1000000000ULL)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

void sim_sleep_until(struct sim_node *node, uint64_t moment_ns)
{
    if (!node->settings.fast_clock) {
        sleep_real(moment_ns);
        return;
    }
    uint64_t now = sim_now(node);
    if (moment_ns > now) {
        __atomic_fetch_add(&node->clock_offset_ns, moment_ns - now, __ATOMIC_ACQ_REL);
    }
    sched_yield();
}

void sim_spin_until(uint64_t real_ns)
{
    uint64_t now = sim_real_ns();
    if (real_ns > now + SLACK_NS) {
        sleep_real(real_ns);
    }
    while (sim_real_ns() < real_ns) {
        sim_relax();
    }
}
