/* ledger_life.c: whether a process still lives, for processes that cannot look it up by its pid: those of other pid
 * namespaces, and of the container's next start. Its helper thread holds a robust mutex in the ledger; when that thread ends,
 * even by SIGKILL, the kernel marks the mutex's word (futex(2)). No other thread takes the mutex: others read the word alone.
 * Unlike a lock on a file it survives closed descriptors and forks.
 *
 * The mutex lies in memory that every program of the container can write to, and the C library trusts the list in it: so the
 * thread repairs the list before it unlocks the mutex. */
#include <linux/futex.h>

#include "clock.h"
#include "ledger/ledger.h"

#define LAST_THREADS_NS 1000000000u /* after the helper's end the process's other threads may still be in the driver */

/* The helper thread's hold. */
static __thread struct {
    int word;
    __typeof__(((pthread_mutex_t *)0)->__data.__list) list;
} held __attribute__((tls_model("initial-exec")));

static int *word_of(struct ledger *ledger, int slot)
{
    return &ledger->lives[slot].mutex.__data.__lock;
}

bool ledger_begin_life(struct ledger *ledger, int slot)
{
    pthread_mutex_t *mutex = &ledger->lives[slot].mutex;
    bool taken = ledger_make_mutex(mutex) && pthread_mutex_trylock(mutex) == 0;
    held.word = taken ? __atomic_load_n(word_of(ledger, slot), __ATOMIC_RELAXED) : 0;
    held.list = mutex->__data.__list;
    return taken;
}

void ledger_end_life(struct ledger *ledger, int slot)
{
    pthread_mutex_t *mutex = &ledger->lives[slot].mutex, whole;
    if (held.word == 0 || !ledger_make_mutex(&whole))
        return;
    whole.__data.__lock = held.word;
    whole.__data.__owner = held.word & FUTEX_TID_MASK;
    whole.__data.__list = held.list;
    *mutex = whole;
    pthread_mutex_unlock(mutex);
    held.word = 0;
}

bool ledger_life_ended(struct ledger *ledger, int slot, uint64_t now_ns)
{
    uint64_t *seen = &ledger->slots[slot].life_ended_ns, before = 0;
    if ((__atomic_load_n(word_of(ledger, slot), __ATOMIC_ACQUIRE) & FUTEX_OWNER_DIED) == 0)
        return false;
    if (!__atomic_compare_exchange_n(seen, &before, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return before <= now_ns && now_ns - before > LAST_THREADS_NS;
    return false;
}
