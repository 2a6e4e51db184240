#include "loading/config_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "crc32.h"
#include "means.h"
#include "schedule.h"

static int refuse(char *reason, size_t size, const char *what)
{
    snprintf(reason, size, "%s", what);
    return 0;
}

static int ends(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static const char *device_fault(const struct vcuda_config_device *device)
{
    if (!ends(device->uuid, sizeof device->uuid) || device->uuid[0] == '\0')
        return "a device has no uuid";
    if (!ends(device->schedule_path, sizeof device->schedule_path))
        return "schedule_path has no end";
    if (device->memory_limit_bytes == 0)
        return "memory_limit_bytes is 0; at least one byte is allowed";
    if (device->memory_soft_limit_bytes > device->memory_limit_bytes)
        return "memory_soft_limit_bytes is above memory_limit_bytes";
    if (device->core_percent > 100)
        return "core_percent is above 100";
    if (device->policy > VCUDA_POLICY_BEST_EFFORT)
        return "policy is not 0, 1 or 2";
    if (device->core_percent == 0 && device->policy != VCUDA_POLICY_BEST_EFFORT)
        return "core_percent is 0 without the best-effort policy";
    if (device->slot >= VCUDA_SCHEDULE_SLOTS)
        return "slot is beyond the schedule page";
    if (device->task_priority > 1)
        return "task_priority is not 0 or 1";
    return NULL;
}

int config_check(const void *bytes, size_t size, char *reason, size_t reason_size)
{
    struct vcuda_config config;
    if (size != sizeof config)
        return refuse(reason, reason_size, "it is not of the expected size");
    memcpy(&config, bytes, sizeof config);
    if (memcmp(config.magic, VCUDA_CONFIG_MAGIC, sizeof config.magic) != 0)
        return refuse(reason, reason_size, "it is no vcuda config (magic)");
    if (config.version != VCUDA_CONFIG_VERSION || config.size != sizeof config)
        return refuse(reason, reason_size, "its version is not 1: the shim and the node agent do not match");
    if (config.checksum != crc32_of(bytes, sizeof config - sizeof config.checksum))
        return refuse(reason, reason_size, "its checksum is wrong");
    if (config.device_count == 0 || config.device_count > VCUDA_MAX_DEVICES)
        return refuse(reason, reason_size, "device_count is not 1..16");
    if (!ends(config.container, sizeof config.container) || !ends(config.pod_uid, sizeof config.pod_uid) ||
        !ends(config.ledger_path, sizeof config.ledger_path) || !ends(config.usage_path, sizeof config.usage_path))
        return refuse(reason, reason_size, "a string has no end");
    if (config.ledger_path[0] != '/')
        return refuse(reason, reason_size, "ledger_path is not an absolute path");
    for (uint32_t i = 0; i < config.device_count; i++) {
        const char *fault = device_fault(&config.devices[i]);
        if (fault != NULL)
            return refuse(reason, reason_size, fault);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(config.devices[i].uuid, config.devices[j].uuid) == 0)
                return refuse(reason, reason_size, "two devices have the same uuid");
    }
    return 1;
}

enum config_result config_read(const char *path, struct vcuda_config *config, char *reason, size_t reason_size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        int error = errno;
        snprintf(reason, reason_size, "%s", strerror(error));
        if (lacks_means(error))
            return CONFIG_NOT_NOW;
        return error == ENOENT || error == ENOTDIR ? CONFIG_ABSENT : CONFIG_BAD;
    }
    char bytes[sizeof *config + 1]; /* one more, to see that there is no more */
    size_t filled = 0;
    while (filled < sizeof bytes) {
        ssize_t got = read(file, bytes + filled, sizeof bytes - filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        filled += (size_t)got;
    }
    close(file);
    if (!config_check(bytes, filled, reason, reason_size))
        return CONFIG_BAD;
    memcpy(config, bytes, sizeof *config);
    return CONFIG_OK;
}
