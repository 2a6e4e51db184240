/* state.c: config, ledger and process state, each found once. */
#include "state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "config_file.h"
#include "identity.h"
#include "schedule_page.h"

enum mode state_published;
struct vcuda_config config;
struct ledger *ledger;

static pthread_mutex_t decide_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three above until published */

void complain(const char *format, ...)
{
    char line[512];
    va_list arguments;
    int size = snprintf(line, sizeof line, "vcuda[%d]: ", (int)getpid());
    va_start(arguments, format);
    size += vsnprintf(line + size, sizeof line - (size_t)size - 1, format, arguments);
    va_end(arguments);
    if (size > (int)sizeof line - 2)
        size = (int)sizeof line - 2;
    line[size] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)size + 1); /* one write: lines of processes stay whole */
    (void)ignored;
}

/* The container's paths are fixed: nothing that a user can set may change them. Only the library that the tests
 * load, built with VCUDA_TESTING, looks at the environment. */
static const char *config_path(void)
{
#ifdef VCUDA_TESTING
    const char *path = getenv("VCUDA_CONFIG");
    if (path != NULL)
        return path;
#endif
    return VCUDA_CONFIG_PATH;
}

static const char *injected_path(void)
{
#ifdef VCUDA_TESTING
    const char *path = getenv("VCUDA_INJECTED");
    if (path != NULL)
        return path;
#endif
    return VCUDA_INJECTED_PATH;
}

static enum mode decide(void)
{
    char reason[160];
    switch (config_read(config_path(), &config, reason, sizeof reason)) {
    case CONFIG_ABSENT:
        if (access(injected_path(), F_OK) != 0)
            return MODE_INERT;
        complain("%s is missing in a FairGPU container: CUDA is refused", config_path());
        return MODE_REFUSED;
    case CONFIG_BAD:
        complain("%s cannot be used (%s): CUDA is refused", config_path(), reason);
        return MODE_REFUSED;
    case CONFIG_OK:
        break;
    }
    ledger = ledger_open(config.ledger_path, reason, sizeof reason);
    if (ledger == NULL) {
        complain("%s cannot be used (%s): CUDA is refused", config.ledger_path, reason);
        return MODE_REFUSED;
    }
    schedule_open();
    return MODE_ACTIVE;
}

enum mode state_decide(void)
{
    pthread_mutex_lock(&decide_lock);
    if (state_published == MODE_UNKNOWN)
        __atomic_store_n(&state_published, decide(), __ATOMIC_RELEASE);
    enum mode mode = state_published;
    pthread_mutex_unlock(&decide_lock);
    return mode;
}

/* A page that the kernel empties in the child of a fork. `current` is published with release once it is whole. */
static struct forgetful {
    struct process *current;
    int making; /* 1 while some thread makes it */
} *forgetful;

static pthread_once_t forgetful_once = PTHREAD_ONCE_INIT;

static void map_forgetful(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        abort();
    madvise(page, 4096, MADV_WIPEONFORK); /* Linux 4.14; below, forks of CUDA processes share a slot */
    forgetful = page;
}

static struct process *make_process(void)
{
    struct process *new = calloc(1, sizeof *new);
    if (new == NULL)
        abort();
    pthread_mutex_init(&new->contexts, NULL);
    pthread_mutex_init(&new->pools.lock, NULL);
    pthread_mutex_init(&new->graphs.lock, NULL);
    allocations_start(&new->allocations);
    uint64_t start = identity_start_time(getpid()), namespace = identity_namespace();
    new->slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    if (new->slot < 0) {
        ledger_sweep(ledger);
        for (uint32_t i = 0; i < config.device_count; i++)
            ledger_true_up(ledger, (int)i, NULL, clock_ns());
        new->slot = ledger_attach(ledger, (uint64_t)getpid(), start, namespace);
    }
    if (new->slot < 0)
        complain("the ledger has no room for this process: its allocations are refused");
    return new;
}

struct process *process(void)
{
    if (likely(forgetful != NULL)) {
        struct process *current = __atomic_load_n(&forgetful->current, __ATOMIC_ACQUIRE);
        if (likely(current != NULL))
            return current;
    }
    pthread_once(&forgetful_once, map_forgetful);
    while (__atomic_exchange_n(&forgetful->making, 1, __ATOMIC_ACQUIRE) != 0) {
        struct timespec moment = {0, 100000};
        nanosleep(&moment, NULL);
    }
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
    int slot = __atomic_exchange_n(&forgetful->current->slot, -1, __ATOMIC_ACQ_REL);
    if (slot >= 0)
        ledger_detach(ledger, slot);
}
