#include "wakeup.h"

#include <pthread.h>
#include <time.h>

#include "compiler.h"

/* 1 while the helper is in its long pause; atomic. `lock` goes with `wake`. */
static int asleep;
static int ended; /* 1 once no pause may begin; atomic, and set under the lock, so that none begins meanwhile */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;

void wakeup_begin(void)
{
    pthread_condattr_t monotonic; /* a step of the other clock would make it sleep as long */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    __atomic_store_n(&ended, 0, __ATOMIC_RELAXED);
}

void wakeup_send(void)
{
    if (likely(__atomic_load_n(&asleep, __ATOMIC_RELAXED) == 0))
        return;
    pthread_mutex_lock(&lock);
    __atomic_store_n(&asleep, 0, __ATOMIC_RELAXED);
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

void wakeup_end(void)
{
    pthread_mutex_lock(&lock);
    __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

void wakeup_wait(uint64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)ns;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&lock);
    __atomic_store_n(&asleep, 1, __ATOMIC_RELAXED);
    if (__atomic_load_n(&ended, __ATOMIC_RELAXED) == 0)
        pthread_cond_timedwait(&wake, &lock, &until);
    __atomic_store_n(&asleep, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}
