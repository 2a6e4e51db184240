/* ledger_lock.c: the lock lies in memory that every program of the container can write to. The C library trusts what lies
 * in a lock, pointers among it: so the shim compares the lock with its only valid value before it takes it, and repairs the
 * lock before it releases it. It misses what is overwritten in the few instructions between a check and the use. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/ledger.h"

#define OWNER_MASK 0x3fffffff   /* futex(2): the owner's thread */
#define HAS_WAITERS 0x80000000u /* futex(2): threads wait for the lock */
#define IMPATIENT_MS (LEDGER_LOCK_MS / 200 + 1)

/* This thread's hold of the lock. */
static __thread struct {
    int thread;
    __typeof__(((pthread_mutex_t *)0)->__data.__list) list;
} held __attribute__((tls_model("initial-exec")));

static int given_up; /* 1 since the lock could not be had: the next attempt waits less. Atomic */

bool ledger_make_mutex(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    int error = pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return error == 0;
}

bool ledger_make_lock(struct ledger *ledger)
{
    return ledger_make_mutex(&ledger->lock);
}

static int right_kind; /* what a lock of ours has as its kind; atomic: every thread finds the same */

static int kind_of_locks(void)
{
    int kind = __atomic_load_n(&right_kind, __ATOMIC_RELAXED);
    pthread_mutex_t sample;
    if (kind == 0 && ledger_make_mutex(&sample)) {
        kind = sample.__data.__kind;
        __atomic_store_n(&right_kind, kind, __ATOMIC_RELAXED);
        pthread_mutex_destroy(&sample);
    }
    return kind;
}

static bool is_lock(struct ledger *ledger)
{
    return __atomic_load_n(&ledger->lock.__data.__kind, __ATOMIC_RELAXED) == kind_of_locks();
}

/* Two that find it overwritten at the same moment both make it: then both may hold it once. The words of the processes
 * are their own; totals are derived anew. */
static bool rebuilt(struct ledger *ledger)
{
    if (!ledger_make_lock(ledger) || pthread_mutex_trylock(&ledger->lock) != 0)
        return false;
    ledger_repair(ledger);
    return true;
}

static struct timespec in_ms(long ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    return until;
}

bool ledger_lock_file(int file)
{
    for (int i = 0; i < LEDGER_LOCK_MS; i++) {
        if (flock(file, LOCK_EX | LOCK_NB) == 0)
            return true;
        if (errno != EINTR && errno != EWOULDBLOCK)
            return false;
        clock_sleep(1000000);
    }
    return false;
}

static int wait_for(struct ledger *ledger)
{
    int error = pthread_mutex_trylock(&ledger->lock);
    if (error != EBUSY)
        return error;
    struct timespec until = in_ms(__atomic_load_n(&given_up, __ATOMIC_RELAXED) != 0 ? IMPATIENT_MS : LEDGER_LOCK_MS);
    error = pthread_mutex_timedlock(&ledger->lock, &until);
    __atomic_store_n(&given_up, error == ETIMEDOUT, __ATOMIC_RELAXED);
    return error;
}

static bool is_had(struct ledger *ledger, int error)
{
    switch (error) {
    case 0:
        return true;
    case EOWNERDEAD: /* at some instruction: the words are true, what was derived from them may not be */
        ledger_repair(ledger);
        return pthread_mutex_consistent(&ledger->lock) == 0;
    case ETIMEDOUT:
    case EDEADLK:
        return false;
    default: /* "not recoverable", which our locks never become */
        return rebuilt(ledger);
    }
}

bool ledger_lock(struct ledger *ledger)
{
    bool had = is_lock(ledger) ? is_had(ledger, wait_for(ledger)) : rebuilt(ledger);
    if (had) {
        held.thread = __atomic_load_n(&ledger->lock.__data.__lock, __ATOMIC_RELAXED) & OWNER_MASK;
        held.list = ledger->lock.__data.__list;
    }
    return had;
}

void ledger_unlock(struct ledger *ledger)
{
    struct __pthread_mutex_s *lock = &ledger->lock.__data;
    if ((__atomic_load_n(&lock->__lock, __ATOMIC_RELAXED) & OWNER_MASK) != held.thread)
        __atomic_store_n(&lock->__lock, (int)((unsigned)held.thread | HAS_WAITERS), __ATOMIC_RELAXED);
    __atomic_store_n(&lock->__kind, kind_of_locks(), __ATOMIC_RELAXED);
    lock->__list = held.list;
    pthread_mutex_unlock(&ledger->lock);
}
