/* nvml_devices.c: NVML shows the container's devices and no others. */
#include "loading/nvml_library.h"
#include "state.h"

#include <string.h>

int nvml_device_index(nvmlDevice_t device)
{
    char uuid[96];
    if (NVML(nvmlDeviceGetUUID) == NULL || NVML(nvmlDeviceGetUUID)(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return -1;
    for (uint32_t i = 0; i < config.device_count; i++)
        if (strcmp(config.devices[i].uuid, uuid) == 0)
            return (int)i;
    return -1;
}

/* Counts the container's devices up to `wanted` (or all, when wanted is the largest number); the one at place
 * `wanted` is handed over. */
static nvmlReturn_t walk(unsigned int wanted, unsigned int *count, nvmlDevice_t *device)
{
    unsigned int all = 0, ours = 0;
    nvmlDevice_t candidate;
    nvmlReturn_t result = NVML(nvmlDeviceGetCount_v2)(&all);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < all; i++) {
        if (NVML(nvmlDeviceGetHandleByIndex_v2)(i, &candidate) != NVML_SUCCESS || nvml_device_index(candidate) < 0)
            continue;
        if (ours == wanted) {
            *device = candidate;
            return NVML_SUCCESS;
        }
        ours++;
    }
    if (result == NVML_SUCCESS && count != NULL)
        *count = ours;
    return result == NVML_SUCCESS && device != NULL ? NVML_ERROR_INVALID_ARGUMENT : result;
}

static bool walkable(void)
{
    return NVML(nvmlDeviceGetCount_v2) != NULL && NVML(nvmlDeviceGetHandleByIndex_v2) != NULL;
}

#define COUNTS(name)                              \
    EXPORT nvmlReturn_t name(unsigned int *count) \
    {                                             \
        NVML_PASS_UNLESS_ACTIVE(name, count);     \
        if (count == NULL || !walkable())         \
            return NVML(name)(count);             \
        return walk(UINT32_MAX, count, NULL);     \
    }

COUNTS(nvmlDeviceGetCount)
COUNTS(nvmlDeviceGetCount_v2)

#define BY_INDEX(name)                                                 \
    EXPORT nvmlReturn_t name(unsigned int index, nvmlDevice_t *device) \
    {                                                                  \
        NVML_PASS_UNLESS_ACTIVE(name, index, device);                  \
        if (device == NULL || !walkable())                             \
            return NVML(name)(index, device);                          \
        return walk(index, NULL, device);                              \
    }

BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

#define BY_NAME(name, type)                                           \
    EXPORT nvmlReturn_t name(type text, nvmlDevice_t *device)         \
    {                                                                 \
        NVML_PASS_UNLESS_ACTIVE(name, text, device);                  \
        nvmlReturn_t result = NVML(name)(text, device);               \
        if (result == NVML_SUCCESS && nvml_device_index(*device) < 0) \
            return NVML_ERROR_NOT_FOUND;                              \
        return result;                                                \
    }

BY_NAME(nvmlDeviceGetHandleByUUID, const char *)
BY_NAME(nvmlDeviceGetHandleByUUIDV, const nvmlUUID_t *)
BY_NAME(nvmlDeviceGetHandleBySerial, const char *)
BY_NAME(nvmlDeviceGetHandleByPciBusId, const char *)
BY_NAME(nvmlDeviceGetHandleByPciBusId_v2, const char *)
