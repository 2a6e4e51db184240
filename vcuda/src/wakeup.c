#include "wakeup.h"

#include <pthread.h>
#include <time.h>

#include "compiler.h"

/* 1 once the helper was asked to look again since its last long pause, and before its first. Atomic; set under the lock, which goes
 * with `wake`. */
static int sent = 1;
static int ended; /* 1 once no pause may begin; under the lock, so that none begins meanwhile */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;

void wakeup_begin(void)
{
    pthread_condattr_t monotonic; /* a step of the other clock would make it sleep as long */
    __atomic_store_n(&sent, 1, __ATOMIC_RELAXED);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&lock, NULL); /* another thread of the parent may have held it at the fork */
    ended = 0;
}

/* Two fences face each other, here and behind a pause. Where `sent` is still set for an earlier call, the helper has not come to its
 * own, and will see what this caller has written. */
void wakeup_send(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (likely(__atomic_load_n(&sent, __ATOMIC_RELAXED) != 0))
        return;
    pthread_mutex_lock(&lock);
    __atomic_store_n(&sent, 1, __ATOMIC_RELAXED);
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

void wakeup_end(void)
{
    pthread_mutex_lock(&lock);
    ended = 1;
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
    if (__atomic_load_n(&sent, __ATOMIC_RELAXED) == 0 && ended == 0)
        pthread_cond_timedwait(&wake, &lock, &until);
    __atomic_store_n(&sent, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
