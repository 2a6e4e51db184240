/* NVML: starting, and the devices. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nvml_control.h"
#include "nvml_seat.h"

struct sim_seat nvml_seat = {.client = SIM_NONE, .descriptor = -1};

static struct nvmlDevice_st handles[SIM_DEVICES];
static int users; /* inits less shutdowns; guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A device that has fallen off the bus is lost to every call; a driver that hangs answers none until the line is gone. */
static nvmlReturn_t state_of(uint32_t device)
{
    const struct timespec look = {.tv_nsec = 10000000};
    while (nvml_control_number(device, "hang", 0) != 0) {
        nanosleep(&look, NULL);
    }
    return nvml_control_number(device, "lost", 0) != 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t nvml_check(nvmlDevice_t device)
{
    if (__atomic_load_n(&users, __ATOMIC_ACQUIRE) == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (device < handles || device >= handles + nvml_seat.node->settings.devices) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return state_of(device->index);
}

static nvmlReturn_t init(void)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0 && nvml_seat.node == NULL) {
        result = sim_node_join(&nvml_seat, 0) == 0 ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
        for (uint32_t i = 0; i < SIM_DEVICES; i++) {
            handles[i].index = i;
        }
    }
    if (result == NVML_SUCCESS) {
        __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlInit(void)
{
    return init();
}

SIM_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return init();
}

SIM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return init();
}

/* The node stays mapped: a thread may still be in a call. */
SIM_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&lock);
    if (users > 0) {
        __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

SIM_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t count_devices(unsigned int *count)
{
    if (__atomic_load_n(&users, __ATOMIC_ACQUIRE) == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (count == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = nvml_seat.node->settings.devices;
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return count_devices(count);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    return count_devices(count);
}

nvmlReturn_t nvml_device(unsigned int index, nvmlDevice_t *device)
{
    unsigned int count = 0;
    nvmlReturn_t result = count_devices(&count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (index >= count || device == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *device = &handles[index];
    return state_of(index);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvml_device(index, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    return nvml_device(index, device);
}

static void write_uuid(uint32_t index, char *text, size_t length)
{
    snprintf(text, length, "GPU-53494d47-5055-0000-0000-%012x", index);
}

static void write_bus_id(uint32_t index, char *text, size_t length)
{
    snprintf(text, length, "00000000:%02X:00.0", index + 1);
}

/* The device of which the text, as this writes it, is what was asked for. */
static nvmlReturn_t by_text(const char *wanted, void (*write)(uint32_t, char *, size_t), nvmlDevice_t *device)
{
    unsigned int count = 0;
    nvmlReturn_t result = count_devices(&count);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (wanted == NULL || device == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < count; i++) {
        char text[64];
        write(i, text, sizeof text);
        if (strcasecmp(text, wanted) == 0 || strcasecmp(text + 4, wanted) == 0) { /* a bus id may have a short domain */
            *device = &handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return by_text(uuid, write_uuid, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    if (uuid == NULL || uuid->type != NVML_UUID_TYPE_ASCII) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return uuid->version != nvmlUUID_v1 ? NVML_ERROR_ARGUMENT_VERSION_MISMATCH
                                        : by_text(uuid->value.str, write_uuid, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return by_text(bus_id, write_bus_id, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return by_text(bus_id, write_bus_id, device);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    (void)serial;
    (void)device;
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t text_of(nvmlDevice_t device, char *text, unsigned int length, void (*write)(uint32_t, char *, size_t))
{
    nvmlReturn_t result = nvml_check(device);
    if (result != NVML_SUCCESS) {
        return result;
    }
    char whole[96];
    write(device->index, whole, sizeof whole);
    if (text == NULL || strlen(whole) >= length) {
        return text == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(text, whole, strlen(whole) + 1);
    return NVML_SUCCESS;
}

static void write_name(uint32_t index, char *text, size_t length)
{
    struct nvml_line line;
    snprintf(text, length, "%s", nvml_control_of(index, "model", &line) ? line.value : "Simulated GPU");
    for (char *at = strchr(text, '_'); at != NULL; at = strchr(at, '_')) {
        *at = ' '; /* a line's words have no spaces */
    }
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    return text_of(device, uuid, length, write_uuid);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    return text_of(device, name, length, write_name);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        *index = device->index;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    return nvmlDeviceGetIndex(device, minor);
}

SIM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    nvmlReturn_t result = nvml_check(device);
    if (result == NVML_SUCCESS) {
        memset(pci, 0, sizeof *pci);
        write_bus_id(device->index, pci->busId, sizeof pci->busId);
        memcpy(pci->busIdLegacy, pci->busId + 4, 13);
        pci->bus = device->index + 1;
    }
    return result;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    snprintf(version, length, "simulated");
    return NVML_SUCCESS;
}

SIM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (__atomic_load_n(&users, __ATOMIC_ACQUIRE) == 0) {
        return NVML_ERROR_UNINITIALIZED;
    }
    *version = (int)nvml_seat.node->settings.driver_version;
    return NVML_SUCCESS;
}
