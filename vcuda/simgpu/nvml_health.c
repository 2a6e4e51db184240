/* NVML: what is wrong with a GPU, and events of it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nvml_control.h"
#include "nvml_seat.h"

enum { LINES = 256, LOOK_NS = 5000000 };

/* An event set remembers how many lines of events there were when it last reported one. */
struct nvmlEventSet_st {
    unsigned long long kinds[SIM_DEVICES];
    size_t reported;
};

static unsigned long long kind_of(const struct nvml_line *line)
{
    if (strcmp(line->word, "xid") == 0) {
        return nvmlEventTypeXidCriticalError;
    }
    return strcmp(line->word, "dbe") == 0 ? nvmlEventTypeDoubleBitEccError : 0;
}

/* The number of lines of events; the one at `wanted` is put into `line`. */
static size_t events(size_t wanted, struct nvml_line *line)
{
    struct nvml_line lines[LINES];
    size_t found = 0;
    for (size_t i = 0, count = nvml_control(lines, LINES); i < count; i++) {
        if (kind_of(&lines[i]) != 0 && found++ == wanted) {
            *line = lines[i];
        }
    }
    return found;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct nvml_line line;
    if (set == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *set = calloc(1, sizeof **set);
    if (*set == NULL) {
        return NVML_ERROR_MEMORY;
    }
    (*set)->reported = events(SIZE_MAX, &line);
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *kinds)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        *kinds = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long kinds, nvmlEventSet_t set)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        set->kinds[device->index] |= kinds;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    for (uint64_t waited = 0; waited <= milliseconds * 1000000ULL; waited += LOOK_NS) {
        struct nvml_line line = {0};
        size_t there = events(SIZE_MAX, &line);
        if (there < set->reported) {
            set->reported = there; /* the file was written anew */
        }
        while (set->reported < events(set->reported, &line)) {
            nvmlDevice_t device = NULL;
            set->reported++;
            if (line.device < SIM_DEVICES && (set->kinds[line.device] & kind_of(&line)) != 0
                && nvml_device(line.device, &device) == NVML_SUCCESS) {
                *data = (nvmlEventData_t){
                    .device = device, .eventType = kind_of(&line), .eventData = strtoull(line.value, NULL, 10)};
                return NVML_SUCCESS;
            }
        }
        nanosleep(&look, NULL);
    }
    return NVML_ERROR_TIMEOUT;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(
    nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count)
{
    nvmlReturn_t result = nvml_check(device);
    (void)counter;
    if (result == NVML_SUCCESS) {
        *count = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED
                     ? (unsigned long long)nvml_control_number(device->index, "ecc", 0)
                     : 0;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(
    nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        *corrected = *pending = 0;
        *failed = nvml_control_number(device->index, "remap_failed", 0) != 0;
        *uncorrected = *failed;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        *current = *pending = nvml_control_number(device->index, "mig", 0) != 0;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(
    nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    nvmlReturn_t result = nvml_check(device);
    struct nvml_line line;
    if (result != NVML_SUCCESS || count == NULL) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    unsigned int room = infos == NULL ? 0 : *count;
    *count = nvml_control_of(device->index, "mps", &line) ? 1 : 0;
    if (*count > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    if (*count == 1) {
        *infos = (nvmlProcessInfo_t){.pid = (unsigned int)strtoul(line.value, NULL, 10)};
    }
    return NVML_SUCCESS;
}
