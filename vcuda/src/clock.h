/* clock.h: the node's clock. */
#ifndef VCUDA_CLOCK_H
#define VCUDA_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in nanoseconds: the same in all containers of a node. */
static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sleeps for so long, less than a second, or until a signal comes. No thread is cancelled in it, as in none of the driver's calls:
 * the caller may have a lock, or count among those for whom others wait. */
static inline void clock_sleep(uint64_t ns)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    nanosleep(&(struct timespec){0, (long)ns}, NULL);
    pthread_setcancelstate(state, &state);
}

#endif
