/* schedule_page.c: mapping and copying the pages. */
#include "time/schedule_page.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "complain.h"
#include "least.h"

#define READ_TRIES 8
#define FIRST_PAUSE_NS 200000000u  /* between two attempts to map a page; doubled after each */
#define LAST_PAUSE_NS 10000000000u /* and no longer than this */
#define PAST 3                     /* periods in which work may have begun that ends now */

static struct page {
    const struct vcuda_schedule *shared; /* atomic, set once; NULL: no page yet */
    uint64_t tried_ns, pause_ns;         /* schedule_open_missing's */
    pthread_mutex_t lock;                /* guards what follows up to `seen` */
    struct vcuda_schedule good;          /* the last good copy; period_ns 0 while there is none */
    struct vcuda_schedule past[PAST];    /* the last copy of each of the periods before, the newest first; likewise */
    struct vcuda_schedule copy;          /* is being made; too large for a stack that is not ours */
    uint64_t seen;                       /* generation of the page that was read last, good or not */
    uint64_t live_limit;                 /* atomic; 0: the config's */
} pages[VCUDA_MAX_DEVICES];

#define NEVER 1u /* `seen` before a page was read: the writer has been at it for as long as a generation is odd */

static const struct vcuda_config *given; /* by schedule_open, once; constant from then on */

static const struct vcuda_schedule *map_page(const char *path, const char **fault)
{
    struct stat status;
    const void *mapped = MAP_FAILED;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *fault = file < 0 ? strerror(errno) : "it is not of the expected size";
    if (file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == VCUDA_SCHEDULE_SIZE) {
        mapped = mmap(NULL, VCUDA_SCHEDULE_SIZE, PROT_READ, MAP_SHARED, file, 0);
        *fault = strerror(errno);
    }
    if (file >= 0)
        close(file);
    return mapped != MAP_FAILED ? mapped : NULL;
}

/* In the child of a fork: another thread may have held a lock, and what it copied may be half there. */
static void begin_anew(void)
{
    for (uint32_t i = 0; i < given->device_count; i++) {
        pthread_mutex_init(&pages[i].lock, NULL);
        pages[i].good.period_ns = 0;
        pages[i].seen = NEVER;
        for (int j = 0; j < PAST; j++)
            pages[i].past[j].period_ns = 0;
    }
}

void schedule_open(const struct vcuda_config *config)
{
    given = config;
    pthread_atfork(NULL, NULL, begin_anew);
    for (uint32_t i = 0; i < config->device_count; i++) {
        const char *path = config->devices[i].schedule_path, *fault;
        pthread_mutex_init(&pages[i].lock, NULL);
        pages[i].seen = NEVER;
        if (path[0] == '\0')
            continue;
        pages[i].shared = map_page(path, &fault);
        pages[i].pause_ns = FIRST_PAUSE_NS;
        if (pages[i].shared == NULL)
            complain("%s cannot be read (%s): launches are paced by the configured share alone", path, fault);
        schedule_refresh((int)i);
    }
}

static bool is_due(struct page *page, uint64_t now_ns)
{
    if (now_ns - page->tried_ns < page->pause_ns)
        return false;
    page->tried_ns = now_ns;
    page->pause_ns = least_of(2 * page->pause_ns, LAST_PAUSE_NS);
    return true;
}

void schedule_open_missing(uint64_t now_ns)
{
    for (uint32_t i = 0; i < given->device_count; i++) {
        const char *path = given->devices[i].schedule_path, *fault;
        if (path[0] == '\0' || pages[i].shared != NULL || !is_due(&pages[i], now_ns))
            continue;
        const struct vcuda_schedule *mapped = map_page(path, &fault);
        if (mapped != NULL)
            complain("%s can be read now: launches go by its turns", path);
        __atomic_store_n(&pages[i].shared, mapped, __ATOMIC_RELEASE);
    }
}

static bool copy_page(const struct vcuda_schedule *shared, struct vcuda_schedule *copy)
{
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t before = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
        if ((before & 1) != 0)
            continue;
        memcpy(copy, shared, sizeof *copy);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&shared->generation, __ATOMIC_RELAXED) == before && schedule_check(copy, sizeof *copy))
            return true;
    }
    return false;
}

/* Under the lock. */
static void take_over(struct page *page, const struct vcuda_config_device *ours)
{
    const struct vcuda_slot *slot = &page->copy.slots[ours->slot];
    if (page->good.epoch_ns != page->copy.epoch_ns && page->good.period_ns != 0) {
        memmove(&page->past[1], &page->past[0], sizeof page->past - sizeof page->past[0]);
        page->past[0] = page->good;
    }
    page->good = page->copy;
    __atomic_store_n(&page->live_limit, slot->key == ours->slot_key ? slot->memory_limit_bytes : 0, __ATOMIC_RELAXED);
}

/* A page that is no good is read again once its writer was there: to find that takes its checksum, eight times over. */
void schedule_refresh(int index)
{
    struct page *page = &pages[index];
    const struct vcuda_schedule *shared = __atomic_load_n(&page->shared, __ATOMIC_ACQUIRE);
    if (shared == NULL)
        return;
    uint64_t generation = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
    pthread_mutex_lock(&page->lock);
    if (generation != page->seen) {
        page->seen = generation;
        if (copy_page(shared, &page->copy))
            take_over(page, &given->devices[index]);
    }
    pthread_mutex_unlock(&page->lock);
}

uint64_t schedule_live_limit(int index)
{
    return __atomic_load_n(&pages[index].live_limit, __ATOMIC_RELAXED);
}

bool schedule_slot(int index, struct vcuda_slot *slot)
{
    struct page *page = &pages[index];
    const struct vcuda_config_device *ours = &given->devices[index];
    schedule_refresh(index);
    pthread_mutex_lock(&page->lock);
    *slot = page->good.slots[ours->slot];
    bool own = page->good.period_ns != 0 && slot->key == ours->slot_key;
    pthread_mutex_unlock(&page->lock);
    return own;
}

/* Without a page a container knows nothing of the GPU's others: it gets a duty cycle of the share's length. */
static struct turn duty_cycle(const struct vcuda_config_device *device, uint64_t now_ns)
{
    static const uint64_t period = VCUDA_PERIOD_NS;
    uint64_t length = period * (device->core_percent != 0 ? device->core_percent : 1) / 100;
    uint64_t phase = now_ns % period;
    bool open = phase < length;
    return (struct turn){.open = open,
                         .end_ns = now_ns - phase + (open ? length : period),
                         .per_period_ns = length,
                         .period_ns = period,
                         .active = 1};
}

/* Under the lock: the page by which the turns of that moment went. */
static const struct vcuda_schedule *page_at(const struct page *page, uint64_t moment_ns)
{
    const struct vcuda_schedule *found = &page->good;
    for (int i = 0; i < PAST && moment_ns < found->epoch_ns && page->past[i].period_ns != 0; i++)
        found = &page->past[i];
    return found;
}

bool schedule_turn_now(int index, uint64_t now_ns, struct turn *turn)
{
    struct page *page = &pages[index];
    const struct vcuda_config_device *ours = &given->devices[index];
    if (ours->schedule_path[0] == '\0')
        return false;
    schedule_refresh(index);
    pthread_mutex_lock(&page->lock);
    bool own = page->good.period_ns != 0 && page->good.slots[ours->slot].key == ours->slot_key;
    if (own)
        *turn = schedule_turn(page_at(page, now_ns), ours->slot, now_ns);
    pthread_mutex_unlock(&page->lock);
    if (!own)
        *turn = duty_cycle(ours, now_ns);
    return true;
}
