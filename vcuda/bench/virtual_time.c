/* virtual_time.c: a clock for several processes that goes on only when all of their threads sleep.
 *
 * Loaded before everything (LD_PRELOAD) with VIRTUAL_TIME naming a file that the processes share. Of all threads one runs
 * at a time: the one that has to wake first. What the machine does meanwhile takes no part, so that a run comes out the
 * same on a busy machine. Reading the clock costs a thread 25 ns of its own time; a thread that gets half a microsecond
 * ahead lets others run that have to wake before, so that waiting by looking at the clock works, too. Wakings can be made
 * late by VIRTUAL_LATE_NS, as a kernel's are. The processes begin with the clock stopped: it starts when all of them sleep.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define THREADS 128
#define LOOK_NS 25
#define AHEAD_NS 500
#define EPOCH_NS 1000000000000ull
#define REALTIME_NS 1700000000000000000ull

enum { FREE, RUNNING, SLEEPING };

static struct shared {
    uint32_t lock; /* atomic; guards the rest */
    uint64_t now_ns, sequence;
    struct thread {
        uint32_t state; /* the futex that its thread sleeps on */
        pid_t process;
        uint64_t wake_ns, sequence; /* of equal moments the one that has waited longest comes first */
    } threads[THREADS];
} *shared;

static uint64_t late_ns;
static uint32_t signals; /* of conditions in this process; atomic */
static __thread int mine = -1;
static __thread uint64_t ahead_ns; /* of the common clock */

static void lock(void)
{
    while (__atomic_exchange_n(&shared->lock, 1, __ATOMIC_ACQUIRE) != 0)
        sched_yield();
}

static void unlock(void)
{
    __atomic_store_n(&shared->lock, 0, __ATOMIC_RELEASE);
}

/* Under the lock: if no thread runs, the clock goes on to the next who wakes. */
static void go_on(void)
{
    struct thread *next = NULL;
    for (int i = 0; i < THREADS; i++) {
        struct thread *one = &shared->threads[i];
        if (one->state == RUNNING)
            return;
        if (one->state == SLEEPING && (next == NULL || one->wake_ns < next->wake_ns ||
                                       (one->wake_ns == next->wake_ns && one->sequence < next->sequence)))
            next = one;
    }
    if (next == NULL)
        return;
    if (next->wake_ns > shared->now_ns)
        shared->now_ns = next->wake_ns;
    __atomic_store_n(&next->state, RUNNING, __ATOMIC_RELEASE);
    syscall(SYS_futex, &next->state, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static int take(uint32_t state)
{
    int taken = -1;
    lock();
    for (int i = 0; i < THREADS && taken < 0; i++)
        if (shared->threads[i].state == FREE) {
            taken = i;
            shared->threads[i] = (struct thread){state, getpid(), shared->now_ns, ++shared->sequence};
        }
    unlock();
    if (taken < 0)
        abort();
    return taken;
}

static void wait_until_running(void)
{
    while (__atomic_load_n(&shared->threads[mine].state, __ATOMIC_ACQUIRE) != RUNNING)
        syscall(SYS_futex, &shared->threads[mine].state, FUTEX_WAIT, SLEEPING, NULL, NULL, 0);
    ahead_ns = 0;
}

static void sleep_until(uint64_t moment_ns)
{
    if (mine < 0)
        mine = take(RUNNING);
    lock();
    shared->threads[mine].wake_ns = moment_ns;
    shared->threads[mine].sequence = ++shared->sequence;
    shared->threads[mine].state = SLEEPING;
    go_on();
    unlock();
    wait_until_running();
}

/* Under no lock: a glance that may be a moment old is good enough, for the others sleep. */
static uint64_t look(void)
{
    uint64_t now = shared->now_ns;
    if (mine < 0)
        return now;
    ahead_ns += LOOK_NS;
    if (ahead_ns < AHEAD_NS)
        return now + ahead_ns;
    for (int i = 0; i < THREADS; i++)
        if (shared->threads[i].state == SLEEPING && shared->threads[i].wake_ns < now + ahead_ns) {
            sleep_until(now + ahead_ns);
            return shared->now_ns;
        }
    return now + ahead_ns;
}

static void end_of(pid_t process, int thread)
{
    lock();
    for (int i = 0; i < THREADS; i++)
        if (shared->threads[i].process == process && (thread < 0 || thread == i))
            shared->threads[i].state = FREE;
    go_on();
    unlock();
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("VIRTUAL_TIME"), *late = getenv("VIRTUAL_LATE_NS");
    int file = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof *shared) != 0)
        abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared == MAP_FAILED)
        abort();
    late_ns = late != NULL ? strtoull(late, NULL, 10) : 0;
    lock();
    if (shared->now_ns == 0)
        shared->now_ns = EPOCH_NS;
    unlock();
    mine = take(RUNNING);
}

__attribute__((destructor)) static void leave(void)
{
    end_of(getpid(), -1);
}

void _exit(int status)
{
    end_of(getpid(), -1);
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

void _Exit(int status)
{
    _exit(status);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        return (int)syscall(SYS_clock_gettime, clock, time);
    uint64_t now = (shared != NULL ? look() : EPOCH_NS) + (clock == CLOCK_REALTIME ? REALTIME_NS : 0);
    *time = (struct timespec){(time_t)(now / 1000000000u), (long)(now % 1000000000u)};
    return 0;
}

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

int nanosleep(const struct timespec *length, struct timespec *left)
{
    (void)left;
    sleep_until(look() + ns_of(length) + late_ns);
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    (void)left;
    uint64_t base = (flags & TIMER_ABSTIME) == 0 ? look() : 0;
    uint64_t until = base + ns_of(time) - (base == 0 && clock == CLOCK_REALTIME ? REALTIME_NS : 0);
    if (until > look())
        sleep_until(until + late_ns);
    return 0;
}

/* The thread that holds it may be asleep on this clock. */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    int error;
    while ((error = pthread_mutex_trylock(mutex)) == EBUSY)
        if (shared != NULL && mine >= 0)
            sleep_until(look() + 2000);
        else
            sched_yield();
    return error;
}

int pthread_cond_signal(pthread_cond_t *condition)
{
    (void)condition;
    __atomic_add_fetch(&signals, 1, __ATOMIC_RELEASE);
    return 0;
}

int pthread_cond_broadcast(pthread_cond_t *condition)
{
    return pthread_cond_signal(condition);
}

int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    (void)condition;
    uint32_t seen = __atomic_load_n(&signals, __ATOMIC_ACQUIRE);
    pthread_mutex_unlock(mutex);
    while (__atomic_load_n(&signals, __ATOMIC_ACQUIRE) == seen)
        sleep_until(look() + 50000);
    pthread_mutex_lock(mutex);
    return 0;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    (void)condition;
    uint32_t seen = __atomic_load_n(&signals, __ATOMIC_ACQUIRE);
    uint64_t limit = ns_of(until) >= REALTIME_NS ? ns_of(until) - REALTIME_NS : ns_of(until); /* either clock */
    pthread_mutex_unlock(mutex);
    while (__atomic_load_n(&signals, __ATOMIC_ACQUIRE) == seen && look() < limit)
        sleep_until(look() + 50000);
    pthread_mutex_lock(mutex);
    return __atomic_load_n(&signals, __ATOMIC_ACQUIRE) == seen ? ETIMEDOUT : 0;
}

struct start {
    void *(*function)(void *);
    void *argument;
    int thread;
};

/* A thread takes part in the clock until what others do at its end is done: its own part is put off to the last round. */
static pthread_key_t ends;
static pthread_once_t ends_once = PTHREAD_ONCE_INIT;

static void thread_ends(void *round)
{
    if ((uintptr_t)round < PTHREAD_DESTRUCTOR_ITERATIONS)
        pthread_setspecific(ends, (void *)((uintptr_t)round + 1));
    else
        end_of(getpid(), mine);
}

static void make_ends(void)
{
    pthread_key_create(&ends, thread_ends);
}

static void *run(void *given)
{
    struct start start = *(struct start *)given;
    free(given);
    mine = start.thread;
    wait_until_running();
    pthread_once(&ends_once, make_ends);
    pthread_setspecific(ends, (void *)1);
    return start.function(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    struct start *start = malloc(sizeof *start);
    if (start == NULL)
        return EAGAIN;
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    *start = (struct start){function, argument, take(SLEEPING)};
    return real(thread, attributes, run, start);
}
