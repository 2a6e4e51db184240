/* NVML: how near two GPUs are, their NVLinks, and the NUMA node next to each. */
#include <stdlib.h>
#include <string.h>

#include "nvml_control.h"
#include "nvml_seat.h"

enum { LINES = 256 };

/* The other end of a device's NVLink: a device, or SIM_NONE for a switch; -1 where it has no such link. */
static int64_t other_end(uint32_t device, unsigned int link)
{
    struct nvml_line lines[LINES];
    unsigned int found = 0;
    for (size_t i = 0, count = nvml_control(lines, LINES); i < count; i++) {
        if (strcmp(lines[i].word, "nvlink") != 0) {
            continue;
        }
        int is_switch = strcmp(lines[i].value, "switch") == 0;
        uint32_t end = is_switch ? SIM_NONE : (uint32_t)strtoul(lines[i].value, NULL, 10);
        int is_here = lines[i].device == device || (is_switch && lines[i].device == SIM_NONE);
        if ((is_here || (!is_switch && end == device)) && found++ == link) {
            return is_here ? end : lines[i].device;
        }
    }
    return -1;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *state)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS && other_end(device->index, 0) < 0) {
        return NVML_ERROR_NOT_SUPPORTED; /* as between most cards in slots */
    }
    if (result == NVML_SUCCESS) {
        *state = other_end(device->index, link) < 0 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(
    nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    nvmlReturn_t result = nvml_check(device);
    int64_t end = result == NVML_SUCCESS ? other_end(device->index, link) : -1;
    if (result != NVML_SUCCESS || end < 0) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_NOT_SUPPORTED;
    }
    *type = end == SIM_NONE ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    nvmlReturn_t result = nvml_check(device);
    nvmlDevice_t other = NULL;
    int64_t end = result == NVML_SUCCESS ? other_end(device->index, link) : -1;
    if (result != NVML_SUCCESS || end < 0) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_NOT_SUPPORTED;
    }
    memset(pci, 0, sizeof *pci);
    return end == SIM_NONE || nvml_device((uint32_t)end, &other) != NVML_SUCCESS ? NVML_SUCCESS
                                                                                : nvmlDeviceGetPciInfo_v3(other, pci);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(
    nvmlDevice_t one, nvmlDevice_t two, nvmlGpuTopologyLevel_t *level)
{
    struct nvml_line lines[LINES];
    nvmlReturn_t result = nvml_check(one) != NVML_SUCCESS ? nvml_check(one) : nvml_check(two);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *level = NVML_TOPOLOGY_SYSTEM;
    for (size_t i = 0, count = nvml_control(lines, LINES); i < count; i++) {
        uint32_t other = (uint32_t)strtoul(lines[i].value, NULL, 10);
        int is_pair = (lines[i].device == one->index && other == two->index)
                      || (lines[i].device == two->index && other == one->index);
        if (strcmp(lines[i].word, "level") == 0 && is_pair) {
            *level = (nvmlGpuTopologyLevel_t)strtol(lines[i].more, NULL, 10);
        }
    }
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(
    nvmlDevice_t device, unsigned int size, unsigned long *nodes, nvmlAffinityScope_t scope)
{
    const unsigned int bits = 8 * sizeof *nodes;
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    long node = nvml_control_number(device->index, "numa", -1);
    if (node < 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (nodes == NULL || size <= (unsigned long)node / bits || scope > NVML_AFFINITY_SCOPE_SOCKET) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    memset(nodes, 0, size * sizeof *nodes);
    nodes[(unsigned long)node / bits] = 1UL << ((unsigned long)node % bits);
    return NVML_SUCCESS;
}
