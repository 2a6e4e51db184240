/* NVML: memory, processes by their host pids, and utilisation in samples of a sixth of a second. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "sim_clock.h"
#include "nvml_seat.h"

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (memory == NULL || memory->version != nvmlMemory_v2) {
        return memory == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    struct sim_view view = sim_lock(&nvml_seat, device->index);
    memory->total = nvml_seat.node->settings.memory_bytes;
    memory->reserved = 0;
    memory->used = view.device->used_bytes;
    memory->free = memory->total - memory->used;
    sim_unlock(&view);
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlMemory_v2_t whole = {.version = nvmlMemory_v2};
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo_v2(device, &whole);
    if (result == NVML_SUCCESS && memory != NULL) {
        *memory = (nvmlMemory_t){.total = whole.total, .free = whole.free, .used = whole.used};
    }
    return result == NVML_SUCCESS && memory == NULL ? NVML_ERROR_INVALID_ARGUMENT : result;
}

/* Bytes per client on a device. What outlives its payer shows in the device's total alone, as with a real driver. */
static unsigned int collect(uint32_t device, uint64_t bytes[SIM_CLIENTS])
{
    unsigned int processes = 0;
    memset(bytes, 0, SIM_CLIENTS * sizeof *bytes);
    struct sim_view view = sim_lock(&nvml_seat, device);
    for (uint32_t i = 0; i < SIM_CONTEXTS; i++) {
        const struct sim_context *context = &view.device->contexts[i];
        if (context->used) {
            processes += bytes[context->client] == 0;
            bytes[context->client] += context->bytes - context->managed;
        }
    }
    for (uint32_t i = 0; i < view.device->handle_top; i++) {
        const struct sim_handle *handle = &view.device->handles[i];
        if (handle->used && handle->refs[handle->payer] != 0) {
            processes += bytes[handle->payer] == 0;
            bytes[handle->payer] += handle->bytes;
        }
    }
    sim_unlock(&view);
    return processes;
}

/* The list in the newest layout; the count goes in as room and comes out as what there is. */
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *infos, size_t stride)
{
    uint64_t bytes[SIM_CLIENTS];
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS || count == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned int room = infos == NULL ? 0 : *count;
    *count = collect(device->index, bytes);
    if (*count > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    char *next = infos;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        if (bytes[i] == 0) {
            continue;
        }
        nvmlProcessInfo_t info = {
            .pid = nvml_host_pid(i),
            .usedGpuMemory = bytes[i],
            .gpuInstanceId = 0xffffffff,
            .computeInstanceId = 0xffffffff,
        };
        memset(next, 0, stride);
        memcpy(next, &info, stride < sizeof info ? stride : sizeof info);
        next += stride;
    }
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                             nvmlProcessInfo_v1_t *infos)
{
    return list(device, count, infos, sizeof *infos);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_v2_t *infos)
{
    return list(device, count, infos, sizeof *infos);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                                nvmlProcessInfo_t *infos)
{
    return list(device, count, infos, sizeof *infos);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *processes)
{
    if (processes == NULL || processes->version != nvmlProcessDetailList_v1) {
        return processes == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (processes->mode != 0) { /* of compute alone there are any */
        processes->numProcArrayEntries = 0;
        return nvml_check(device);
    }
    return list(device, &processes->numProcArrayEntries, processes->procArray, sizeof *processes->procArray);
}

static nvmlReturn_t list_none(nvmlDevice_t device, unsigned int *count)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        *count = 0;
    }
    return result;
}

#define LISTS_NONE(name, type)                                                                    \
    SIM_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, type *infos)           \
    {                                                                                             \
        (void)infos;                                                                              \
        return list_none(device, count);                                                          \
    }
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)

static unsigned int percent(uint64_t part_ns)
{
    return (unsigned int)((part_ns * 100 + SIM_SAMPLE_NS / 2) / SIM_SAMPLE_NS);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS || utilization == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    struct sim_view view = sim_lock(&nvml_seat, device->index);
    const struct sim_device *state = view.device;
    uint64_t busy = state->sample_count == 0 ? 0 : state->samples[(state->sample_count - 1) % SIM_SAMPLES].busy_ns;
    *utilization = (nvmlUtilization_t){.gpu = percent(busy), .memory = percent(busy) / 2};
    sim_unlock(&view);
    return NVML_SUCCESS;
}

static uint64_t wall_offset_ns;
static pthread_once_t wall_once = PTHREAD_ONCE_INIT;

static void read_wall_offset(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    wall_offset_ns = (uint64_t)wall.tv_sec * 1000000000ULL + (uint64_t)wall.tv_nsec - sim_real_ns();
}

/* A sample's time must be the same each time it is asked for, so the two clocks are compared once. */
static uint64_t wall_us(uint64_t monotonic_ns)
{
    pthread_once(&wall_once, read_wall_offset);
    return (monotonic_ns + wall_offset_ns) / 1000;
}

/* The newest closed sample after `since` in which each process did something; the pids are the clients' numbers still. */
static unsigned int gather(const struct sim_device *device, uint64_t since_us, nvmlProcessUtilizationSample_t *found)
{
    unsigned int count = 0;
    uint32_t kept = device->sample_count < SIM_SAMPLES - 1 ? device->sample_count : SIM_SAMPLES - 1;
    for (uint32_t context = 0; context < SIM_CONTEXTS; context++) {
        for (uint32_t age = 1; age <= kept && device->contexts[context].used; age++) {
            const struct sim_sample *sample = &device->samples[(device->sample_count - age) % SIM_SAMPLES];
            if (wall_us(sample->time_ns) <= since_us) {
                break;
            }
            if (sample->context_ns[context] != 0) {
                found[count++] = (nvmlProcessUtilizationSample_t){
                    .pid = device->contexts[context].client,
                    .timeStamp = wall_us(sample->time_ns),
                    .smUtil = percent(sample->context_ns[context]),
                };
                break;
            }
        }
    }
    return count;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
                                                        unsigned int *count, unsigned long long since_us)
{
    nvmlProcessUtilizationSample_t found[SIM_CONTEXTS];
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS || count == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    struct sim_view view = sim_lock(&nvml_seat, device->index);
    unsigned int there = gather(view.device, since_us, found);
    sim_unlock(&view);
    for (unsigned int i = 0; i < there; i++) {
        found[i].pid = nvml_host_pid(found[i].pid); /* looks at /proc: never under the device's lock */
    }
    if (there == 0) {
        *count = 0;
        return NVML_ERROR_NOT_FOUND;
    }
    if (utilization == NULL || *count < there) {
        *count = there;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(utilization, found, there * sizeof *found);
    *count = there;
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    nvmlProcessUtilizationSample_t found[SIM_CONTEXTS];
    unsigned int there = SIM_CONTEXTS;
    if (info == NULL || info->version != nvmlProcessesUtilizationInfo_v1) {
        return info == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    nvmlReturn_t result = nvmlDeviceGetProcessUtilization(device, found, &there, info->lastSeenTimeStamp);
    unsigned int room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    info->processSamplesCount = there;
    if (result != NVML_SUCCESS || there > room) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INSUFFICIENT_SIZE;
    }
    for (unsigned int i = 0; i < there; i++) {
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = found[i].pid, .timeStamp = found[i].timeStamp, .smUtil = found[i].smUtil};
    }
    return NVML_SUCCESS;
}
