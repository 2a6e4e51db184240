/* process.c: what this process has, and its place in the ledger; a forked child begins anew. */
#include "process.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "compiler.h"
#include "complain.h"
#include "loading/identity.h"
#include "state.h"

/* A page that the kernel empties in the child of a fork. `current` is published with release once it is whole. */
static struct forgetful {
    struct process *current;
    int making; /* 1 while some thread makes it */
} *forgetful;

/* What `current` points to. In the library's own memory: a program that has none left is refused what it asks for, and goes on. */
static struct process ours;

static pthread_once_t forgetful_once = PTHREAD_ONCE_INIT;

static void forget(void)
{
    if (forgetful != NULL)
        memset(forgetful, 0, sizeof *forgetful);
}

/* The C library's fork empties it where the kernel does not: before Linux 4.14, in gVisor, and where there is no page. */
static void map_forgetful(void)
{
    static struct forgetful no_page;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, forget);
    forgetful = page != MAP_FAILED ? page : &no_page;
}

/* In the child of a fork there may be something of its parent, and no other thread. */
static struct process *make_process(void)
{
    memset(&ours, 0, sizeof ours);
    pthread_mutex_init(&ours.contexts, NULL);
    pthread_mutex_init(&ours.pools.lock, NULL);
    pthread_mutex_init(&ours.deferred_frees.lock, NULL);
    pthread_mutex_init(&ours.graphs.lock, NULL);
    pthread_mutex_init(&ours.multicast.lock, NULL);
    allocations_start(&ours.allocations);
    uint64_t start = identity_start_time(getpid()), namespace = identity_namespace();
    ours.slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    if (ours.slot < 0) {
        ledger_sweep(ledger);
        for (uint32_t i = 0; i < config.device_count; i++)
            ledger_true_up(ledger, (int)i, NULL, clock_ns());
        ours.slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    }
    if (ours.slot < 0)
        complain("the ledger has no room for this process: its allocations are refused");
    return &ours;
}

struct process *process(void)
{
    if (likely(forgetful != NULL)) {
        struct process *current = __atomic_load_n(&forgetful->current, __ATOMIC_ACQUIRE);
        if (likely(current != NULL))
            return current;
    }
    pthread_once(&forgetful_once, map_forgetful);
    while (__atomic_exchange_n(&forgetful->making, 1, __ATOMIC_ACQUIRE) != 0)
        clock_sleep(100000);
    if (forgetful->current == NULL)
        __atomic_store_n(&forgetful->current, make_process(), __ATOMIC_RELEASE);
    __atomic_store_n(&forgetful->making, 0, __ATOMIC_RELEASE);
    return forgetful->current;
}

/* Called by the loader when the process ends by itself or the shim is unloaded: its slot becomes one of a dead
 * process at once, and its memory free as soon as the driver has released it. */
__attribute__((destructor)) static void leave(void)
{
    if (state_published != MODE_ACTIVE || forgetful == NULL || forgetful->current == NULL)
        return;
    for (uint32_t i = 0; i < config.device_count; i++)
        write_what_is_late((int)i);
    int slot = __atomic_exchange_n(&forgetful->current->slot, -1, __ATOMIC_ACQ_REL);
    if (slot >= 0)
        ledger_detach(ledger, slot);
}
