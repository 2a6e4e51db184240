/* nvml_report.c: memory, processes and utilisation of the container, not of the GPU. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "loading/nvml_library.h"
#include "memory/charge.h"
#include "state.h"

static void slice(int index, unsigned long long *total, unsigned long long *free, unsigned long long *used)
{
    uint64_t limit = memory_limit(index), held = ledger_held(ledger, index);
    *total = *total < limit ? *total : limit;
    *used = held < *total ? held : *total;
    *free = *total - *used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetMemoryInfo, device, memory);
    nvmlReturn_t result = NVML(nvmlDeviceGetMemoryInfo)(device, memory);
    int index = result == NVML_SUCCESS ? nvml_device_index(device) : -1;
    if (index >= 0)
        slice(index, &memory->total, &memory->free, &memory->used);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetMemoryInfo_v2, device, memory);
    nvmlReturn_t result = NVML(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    int index = result == NVML_SUCCESS ? nvml_device_index(device) : -1;
    if (index >= 0) {
        slice(index, &memory->total, &memory->free, &memory->used);
        memory->reserved = 0; /* the driver's share of the device is not the container's */
    }
    return result;
}

/* NVML speaks of host pids, of which the container can make nothing. The ledger has its own. */
struct entry {
    uint64_t pid, bytes;
};

/* Writes up to `room` of them and counts all. */
static unsigned int processes_on(int index, struct entry *entries, unsigned int room)
{
    unsigned int count = 0;
    for (int i = 0; i < LEDGER_SLOTS; i++) {
        const struct ledger_slot *slot = &ledger->slots[i];
        uint64_t bytes = __atomic_load_n(&slot->charged[index], __ATOMIC_RELAXED);
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != SLOT_LIVE || bytes == 0)
            continue;
        if (count < room)
            entries[count] = (struct entry){slot->pid, bytes};
        count++;
    }
    return count;
}

/* Room in, number out; too little room is an error with the number that it takes. */
#define LISTED(of, type, also)                                                    \
    static nvmlReturn_t of(nvmlDevice_t device, unsigned int *count, type *infos) \
    {                                                                             \
        int index = nvml_device_index(device);                                    \
        if (index < 0 || count == NULL || (infos == NULL && *count != 0))         \
            return NVML_ERROR_INVALID_ARGUMENT;                                   \
        unsigned int room = *count < LEDGER_SLOTS ? *count : LEDGER_SLOTS;        \
        struct entry *entries = calloc(room + 1, sizeof *entries);                \
        if (entries == NULL)                                                      \
            return NVML_ERROR_MEMORY;                                             \
        *count = processes_on(index, entries, room);                              \
        for (unsigned int i = 0; i < *count && i < room; i++) {                   \
            memset(&infos[i], 0, sizeof infos[i]);                                \
            infos[i].pid = (unsigned int)entries[i].pid;                          \
            infos[i].usedGpuMemory = entries[i].bytes;                            \
            also                                                                  \
        }                                                                         \
        free(entries);                                                            \
        return *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;       \
    }
#define NO_MIG infos[i].gpuInstanceId = infos[i].computeInstanceId = UINT32_MAX;

LISTED(listed_v1, nvmlProcessInfo_v1_t, )
LISTED(listed_v2, nvmlProcessInfo_v2_t, NO_MIG)
LISTED(listed_v3, nvmlProcessInfo_t, NO_MIG)
LISTED(listed_in_detail, nvmlProcessDetail_v1_t, NO_MIG)

#define LISTS(name, type, of)                                                       \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) \
    {                                                                               \
        NVML_PASS_UNLESS_ACTIVE(name, device, count, infos);                        \
        return of(device, count, infos);                                            \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, listed_v1)
LISTS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, listed_v2)
LISTS(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, listed_v3)

/* A later version of the list would list all containers: it is not known here, and so not given. */
EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetRunningProcessDetailList, device, list);
    if (list == NULL || list->mode > NVML_PROCESS_MODE_ALL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (list->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL)
        return listed_in_detail(device, &list->numProcArrayEntries, list->procArray);
    list->numProcArrayEntries = 0; /* neither graphics nor MPS, as below */
    return NVML_SUCCESS;
}

/* Neither graphics nor MPS: a container does not see the processes of other containers. */
#define LISTS_NONE(name, type)                                                      \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos) \
    {                                                                               \
        NVML_PASS_UNLESS_ACTIVE(name, device, count, infos);                        \
        if (count == NULL)                                                          \
            return NVML_ERROR_INVALID_ARGUMENT;                                     \
        *count = 0;                                                                 \
        return NVML_SUCCESS;                                                        \
    }

LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* Percent of wall time in which the container occupied the GPU, since the last question that lies at least a
 * sixth of a second back: what NVML's own figure means, for the slice. */
#define SAMPLE_NS 166000000u

static struct {
    pthread_mutex_t lock; /* guards the three below */
    uint64_t asked_ns[VCUDA_MAX_DEVICES], busy_ns[VCUDA_MAX_DEVICES];
    unsigned int percent[VCUDA_MAX_DEVICES];
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* In the child of a fork, where the thread that held the lock is not. */
static void begin_anew(void)
{
    pthread_mutex_init(&last.lock, NULL);
    memset(last.asked_ns, 0, sizeof last.asked_ns);
}

static void look_out_for_forks(void)
{
    pthread_atfork(NULL, NULL, begin_anew);
}

static unsigned int busy_percent(int index)
{
    static pthread_once_t looks_out = PTHREAD_ONCE_INIT;
    pthread_once(&looks_out, look_out_for_forks);
    uint64_t now = clock_ns(), busy = __atomic_load_n(&ledger->devices[index].busy_ns, __ATOMIC_RELAXED);
    pthread_mutex_lock(&last.lock);
    if (now - last.asked_ns[index] >= SAMPLE_NS) {
        uint64_t wall = now - last.asked_ns[index], part = busy - last.busy_ns[index];
        bool known = last.asked_ns[index] != 0 && busy >= last.busy_ns[index];
        last.percent[index] = known ? (unsigned int)(part < wall ? part * 100 / wall : 100) : 0;
        last.asked_ns[index] = now;
        last.busy_ns[index] = busy;
    }
    unsigned int percent = last.percent[index];
    pthread_mutex_unlock(&last.lock);
    return percent;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetUtilizationRates, device, utilization);
    int index = nvml_device_index(device);
    if (index < 0 || utilization == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t limit = memory_limit(index), held = ledger_held(ledger, index);
    utilization->gpu = busy_percent(index);
    utilization->memory = (unsigned int)(held < limit ? held * 100 / limit : 100);
    return NVML_SUCCESS;
}

/* Samples by host pid, of all containers: nothing that this one may see. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned int *count, unsigned long long since)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetProcessUtilization, device, samples, count, since);
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_ERROR_NOT_FOUND; /* NVML's own answer when no process was seen */
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    NVML_PASS_UNLESS_ACTIVE(nvmlDeviceGetProcessesUtilizationInfo, device, info);
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    info->processSamplesCount = 0;
    return NVML_ERROR_NOT_FOUND;
}
