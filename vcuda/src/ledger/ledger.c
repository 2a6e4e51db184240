/* ledger.c: opening, and charging. */
#include "ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "means.h"

static uint64_t realtime_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Under an exclusive flock, which the kernel drops when its holder dies: half an initialisation is begun anew,
 * since the magic comes last. */
static bool initialise(struct ledger *ledger)
{
    bool made = ledger_make_lock(ledger);
    ledger->public.version = VCUDA_LEDGER_VERSION;
    ledger->public.epoch_ns = realtime_ns();
    __atomic_store_n(&ledger->public.magic, VCUDA_LEDGER_MAGIC, __ATOMIC_RELEASE);
    return made;
}

/* The file is made of holes at first, and to touch one in a full tmpfs is SIGBUS. A tmpfs begins anew after each signal: a
 * program with a fast timer would never get through. */
static bool fill_holes(int file, const struct stat *status)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool filled = status->st_blocks * 512 >= VCUDA_LEDGER_SIZE || fallocate(file, 0, 0, VCUDA_LEDGER_SIZE) == 0;
    int error = filled ? 0 : errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return filled || error == EOPNOTSUPP;
}

struct ledger *ledger_open(const char *path, char *reason, size_t reason_size, bool *not_now)
{
    struct stat status;
    *not_now = false;
    int file = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0 || fstat(file, &status) != 0) {
        *not_now = lacks_means(errno);
        snprintf(reason, reason_size, "%s", strerror(errno));
        if (file >= 0)
            close(file);
        return NULL;
    }
    if (!S_ISREG(status.st_mode) || status.st_size != VCUDA_LEDGER_SIZE) {
        snprintf(reason, reason_size, "it has %lld bytes instead of %u", (long long)status.st_size, VCUDA_LEDGER_SIZE);
        close(file);
        return NULL;
    }
    void *mapped = MAP_FAILED;
    if (fill_holes(file, &status))
        mapped = mmap(NULL, VCUDA_LEDGER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct ledger *ledger = mapped;
    bool good = ledger != MAP_FAILED;
    if (!good) {
        *not_now = lacks_means(errno);
        snprintf(reason, reason_size, "it cannot be mapped: %s", strerror(errno));
    }
    if (good && __atomic_load_n(&ledger->public.magic, __ATOMIC_ACQUIRE) == 0) {
        good = ledger_lock_file(file);
        if (!good)
            snprintf(reason, reason_size, "another process keeps it locked");
        else if (__atomic_load_n(&ledger->public.magic, __ATOMIC_ACQUIRE) == 0)
            initialise(ledger);
        flock(file, LOCK_UN); /* closing leaves it locked: the mapping keeps the open file, and flock(2) is of that */
    }
    close(file);
    if (good && (ledger->public.magic != VCUDA_LEDGER_MAGIC || ledger->public.version != VCUDA_LEDGER_VERSION)) {
        snprintf(reason, reason_size, "it is of another version");
        good = false;
    }
    if (!good && mapped != MAP_FAILED)
        munmap(mapped, VCUDA_LEDGER_SIZE);
    return good ? ledger : NULL;
}

void ledger_set_total(struct ledger_device *device, uint64_t total)
{
    __atomic_store_n(&device->total, total, __ATOMIC_RELAXED); /* ledger_held reads it without the lock */
    if (total < device->low)
        device->low = total;
    if (total > device->high)
        device->high = total;
    if (total + device->overhead > device->peak)
        device->peak = total + device->overhead;
}

/* Reads the clock last, after it has cleared what was noted before. If the process is killed on the way, the next owner of
 * the lock repairs the ledger, which begins the window anew. */
void ledger_begin_window(struct ledger *ledger, int device)
{
    struct ledger_device *shared = &ledger->devices[device];
    shared->low = shared->high = shared->total;
    shared->departed = 0;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++)
        __atomic_store_n(&ledger->slots[i].most_unsettled[device], 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&shared->settled_ns, clock_ns(), __ATOMIC_SEQ_CST);
}

static bool is_of(const struct ledger_slot *slot, uint64_t pid, uint64_t start_time, uint64_t namespace)
{
    return slot->state == SLOT_LIVE && slot->pid == pid && slot->start_time == start_time && slot->namespace == namespace;
}

static void bury(struct ledger_slot *slot)
{
    slot->died_ns = clock_ns();
    __atomic_store_n(&slot->state, SLOT_DEAD, __ATOMIC_RELEASE);
}

int ledger_attach(struct ledger *ledger, uint64_t pid, uint64_t start_time, uint64_t namespace)
{
    int chosen = -1;
    if (!ledger_lock(ledger))
        return -1;
    for (int i = 0; i < LEDGER_SLOTS && (uint64_t)i < ledger->slots_used; i++)
        if (is_of(&ledger->slots[i], pid, start_time, namespace)) /* its program before exec: ended without a word */
            bury(&ledger->slots[i]);
    for (int i = 0; i < LEDGER_SLOTS && chosen < 0; i++)
        if (ledger->slots[i].state == SLOT_FREE)
            chosen = i;
    if (chosen >= 0) {
        struct ledger_slot *slot = &ledger->slots[chosen];
        memset(slot, 0, sizeof *slot);
        memset(&ledger->sharing[chosen], 0, sizeof ledger->sharing[chosen]);
        memset(&ledger->lives[chosen], 0, sizeof ledger->lives[chosen]);
        slot->pid = pid;
        slot->start_time = start_time;
        slot->namespace = namespace;
        if (ledger->slots_used < (uint64_t)chosen + 1)
            __atomic_store_n(&ledger->slots_used, (uint64_t)chosen + 1, __ATOMIC_RELAXED);
        __atomic_store_n(&slot->state, SLOT_LIVE, __ATOMIC_RELEASE);
    }
    ledger_unlock(ledger);
    return chosen;
}

static bool holds_nothing(const struct ledger_slot *slot)
{
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++)
        if (slot->charged[device] != 0)
            return false;
    return true;
}

static bool settled(const struct ledger_slot *slot)
{
    for (int device = 0; device < VCUDA_MAX_DEVICES; device++)
        if (__atomic_load_n(&slot->unsettled[device], __ATOMIC_SEQ_CST) != 0)
            return false;
    return true;
}

uint64_t ledger_most_unsettled(const struct ledger_slot *slot, int device)
{
    uint64_t most = __atomic_load_n(&slot->most_unsettled[device], __ATOMIC_SEQ_CST);
    uint64_t now = __atomic_load_n(&slot->unsettled[device], __ATOMIC_SEQ_CST);
    return now > most ? now : most;
}

void ledger_detach(struct ledger *ledger, int slot)
{
    if (!ledger_lock(ledger))
        return;
    struct ledger_slot *ours = &ledger->slots[slot];
    ours->died_ns = clock_ns();
    if (holds_nothing(ours)) {
        for (int device = 0; device < VCUDA_MAX_DEVICES; device++)
            ledger->devices[device].departed += ledger_most_unsettled(ours, device);
        __atomic_store_n(&ours->state, SLOT_FREE, __ATOMIC_RELEASE);
    } else if (settled(ours)) {
        __atomic_store_n(&ours->state, SLOT_DEAD, __ATOMIC_RELEASE);
    }
    ledger_unlock(ledger);
}

void ledger_unsettle(struct ledger *ledger, int slot, int device, uint64_t bytes)
{
    __atomic_add_fetch(&ledger->slots[slot].unsettled[device], bytes, __ATOMIC_SEQ_CST);
}

/* The most is noted before every decrease: of those charges that the driver does not hold when a sample is taken, the
 * first to be settled afterwards notes them all. */
void ledger_confirm(struct ledger *ledger, int slot, int device, uint64_t bytes)
{
    uint64_t *now = &ledger->slots[slot].unsettled[device], *most = &ledger->slots[slot].most_unsettled[device];
    uint64_t height = __atomic_load_n(now, __ATOMIC_SEQ_CST), seen = __atomic_load_n(most, __ATOMIC_SEQ_CST);
    while (height > seen && !__atomic_compare_exchange_n(most, &seen, height, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    __atomic_sub_fetch(now, bytes, __ATOMIC_SEQ_CST);
}

bool ledger_charge(struct ledger *ledger, int slot, int device, uint64_t bytes, uint64_t limit, bool force)
{
    struct ledger_device *shared = &ledger->devices[device];
    uint64_t *word = &ledger->slots[slot].charged[device];
    if (!ledger_lock(ledger))
        return false;
    uint64_t held = ledger_held(ledger, device);
    bool fits = force || (bytes <= limit && held <= limit - bytes);
    if (fits) {
        ledger_unsettle(ledger, slot, device, bytes);
        __atomic_store_n(word, *word + bytes, __ATOMIC_RELEASE);
        ledger_set_total(shared, shared->total + bytes);
        __atomic_store_n(&ledger->public.devices[device].charged_bytes, shared->total, __ATOMIC_RELAXED);
    }
    ledger_unlock(ledger);
    return fits;
}

bool ledger_discharge(struct ledger *ledger, int slot, int device, uint64_t bytes)
{
    struct ledger_device *shared = &ledger->devices[device];
    uint64_t *word = &ledger->slots[slot].charged[device];
    if (!ledger_lock(ledger))
        return false;
    if (bytes > *word)
        bytes = *word; /* only a tampered ledger gets here; never below zero */
    __atomic_store_n(word, *word - bytes, __ATOMIC_RELEASE);
    ledger_set_total(shared, shared->total - bytes);
    ledger_confirm(ledger, slot, device, bytes);
    __atomic_store_n(&ledger->public.devices[device].charged_bytes, shared->total, __ATOMIC_RELAXED);
    ledger_unlock(ledger);
    return true;
}

uint64_t ledger_held(const struct ledger *ledger, int device)
{
    const struct ledger_device *shared = &ledger->devices[device];
    uint64_t sum, total = __atomic_load_n(&shared->total, __ATOMIC_RELAXED);
    return __builtin_add_overflow(total, __atomic_load_n(&shared->overhead, __ATOMIC_RELAXED), &sum) ? UINT64_MAX : sum;
}
