#include "usage_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "complain.h"
#include "crc32.h"
#include "memory/charge.h"
#include "state.h"
#include "usage.h"

#define INTERVAL_NS 1000000000u

static uint64_t read_counter(const uint64_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static void fill(struct vcuda_usage *usage)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    memcpy(usage->magic, VCUDA_USAGE_MAGIC, sizeof usage->magic);
    usage->version = VCUDA_USAGE_VERSION;
    usage->size = VCUDA_USAGE_SIZE;
    usage->epoch_ns = ledger->public.epoch_ns;
    usage->written_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    usage->device_count = config.device_count;
    for (int i = 0; i < LEDGER_SLOTS; i++)
        usage->processes += ledger->slots[i].state == SLOT_LIVE;
    for (uint32_t i = 0; i < config.device_count; i++) {
        const struct ledger_device *from = &ledger->devices[i];
        struct vcuda_usage_device *to = &usage->devices[i];
        memcpy(to->uuid, config.devices[i].uuid, sizeof to->uuid);
        to->busy_ns = read_counter(&from->busy_ns);
        to->span_ns = read_counter(&from->span_ns);
        to->throttled_ns = read_counter(&from->throttled_ns);
        to->memory_peak_bytes = read_counter(&from->peak);
        to->memory_now_bytes = ledger_held(ledger, (int)i);
        to->memory_limit_bytes = memory_limit((int)i);
        to->launches = read_counter(&from->launches);
        to->oom = read_counter(&from->oom);
    }
}

/* Programs go on: one line, and no more of it. */
static void complain_once(const char *why)
{
    static int complained; /* atomic */
    if (__atomic_exchange_n(&complained, 1, __ATOMIC_RELAXED) == 0)
        complain("%s cannot be written (%s): usage is not reported", config.usage_path, why);
}

/* Readers refuse a file of another size: a file that another program made longer is cut. */
static void cut_to_size(int file, size_t size)
{
    struct stat status;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > (off_t)size &&
        ftruncate(file, (off_t)size) != 0)
        complain_once(strerror(errno));
}

/* Under the ledger's lock, so that records of two processes never mix and the sequence always grows. */
static void write_record(int file)
{
    struct vcuda_usage usage;
    memset(&usage, 0, sizeof usage);
    fill(&usage);
    usage.sequence = ++ledger->usage_sequence;
    usage.checksum = crc32_of(&usage, sizeof usage - sizeof usage.checksum);
    if (pwrite(file, &usage, sizeof usage, 0) != (ssize_t)sizeof usage)
        complain_once(strerror(errno));
    cut_to_size(file, sizeof usage);
}

/* Replaces a file that another user of the container made: all users may write to the folder, and the counters are in the
 * ledger. */
static int open_record(void)
{
    static const int how = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int file = open(config.usage_path, how, 0644);
    if (file < 0 && errno == EACCES && unlink(config.usage_path) == 0)
        file = open(config.usage_path, how, 0644);
    return file;
}

void usage_write(bool now)
{
    uint64_t time = clock_ns(), last = __atomic_load_n(&ledger->usage_written_ns, __ATOMIC_RELAXED);
    if (config.usage_path[0] == '\0' || (!now && last <= time && time - last < INTERVAL_NS) ||
        !__atomic_compare_exchange_n(&ledger->usage_written_ns, &last, time, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        return;
    int file = open_record();
    if (file < 0) {
        complain_once(strerror(errno));
        return;
    }
    if (ledger_lock(ledger)) {
        write_record(file);
        ledger_unlock(ledger);
    }
    close(file);
}
