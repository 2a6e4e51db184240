#include "settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_device.h"

static _Noreturn void refuse(const char *name, const char *given, const char *allowed)
{
    fprintf(stderr, "simgpu: %s=%s: allowed is %s\n", name, given, allowed);
    exit(2);
}

static uint64_t number(const char *name, uint64_t fallback, uint64_t low, uint64_t high)
{
    const char *given = getenv(name);
    if (given == NULL || *given == '\0') {
        return fallback;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(given, &end, 10);
    if (errno != 0 || *end != '\0' || value < low || value > high) {
        char allowed[64];
        snprintf(allowed, sizeof allowed, "a whole number from %llu to %llu", (unsigned long long)low,
                 (unsigned long long)high);
        refuse(name, given, allowed);
    }
    return value;
}

/* "500-2000" draws each slice between the two; "2000" fixes it. */
static void slice(struct sim_settings *settings)
{
    settings->slice_low_ns = 500000;
    settings->slice_high_ns = 2000000;
    const char *given = getenv("SIMGPU_SLICE_US");
    if (given == NULL || *given == '\0') {
        return;
    }
    unsigned low = 0;
    unsigned high = 0;
    char rest = 0;
    int fields = sscanf(given, "%u-%u%c", &low, &high, &rest);
    if (fields == 1) {
        high = low;
    }
    if (fields < 1 || fields > 2 || low == 0 || high < low || high > 1000000) {
        refuse("SIMGPU_SLICE_US", given, "LOW-HIGH or one number, 1 to 1000000");
    }
    settings->slice_low_ns = low * 1000ULL;
    settings->slice_high_ns = high * 1000ULL;
}

static uint32_t fast_clock(void)
{
    const char *given = getenv("SIMGPU_CLOCK");
    if (given == NULL || *given == '\0' || strcmp(given, "real") == 0) {
        return 0;
    }
    if (strcmp(given, "fast") != 0) {
        refuse("SIMGPU_CLOCK", given, "real or fast");
    }
    return 1;
}

struct sim_settings sim_settings_from_environment(void)
{
    struct sim_settings settings = {
        .devices = (uint32_t)number("SIMGPU_DEVICES", 1, 0, SIM_DEVICES),
        .fast_clock = fast_clock(),
        .call_costs = (uint32_t)number("SIMGPU_CALL_COSTS", 1, 0, 1),
        .driver_version = (uint32_t)number("SIMGPU_DRIVER_VERSION", SIM_DRIVER_VERSION, 11000, 13999),
        .host_pid_offset = (uint32_t)number("SIMGPU_HOST_PID_OFFSET", 0, 0, 1U << 30),
        .managed_resident = (uint32_t)number("SIMGPU_MANAGED_RESIDENT", 0, 0, 1),
        .clock_ppm = (uint32_t)number("SIMGPU_CLOCK_PPM", 1000000, 900000, 1100000),
        .memory_bytes = number("SIMGPU_MEMORY_MIB", 81920, 64, 1U << 20) << 20,
        .context_bytes = number("SIMGPU_CONTEXT_MIB", 256, 0, 4096) << 20,
        .switch_ns = number("SIMGPU_SWITCH_US", 50, 0, 10000) * 1000,
        .copy_bytes_per_us = number("SIMGPU_COPY_MIB_PER_S", 24000, 1, 1U << 20) * 1048576 / 1000000,
        .teardown_ns = number("SIMGPU_TEARDOWN_MS", 20, 0, 60000) * 1000000,
        .pool_step = number("SIMGPU_POOL_STEP_MIB", 32, 2, 4096) << 20,
        .kernel_ns = number("SIMGPU_KERNEL_US", 10, 1, 60000000) * 1000,
    };
    slice(&settings);
    if (settings.fast_clock) {
        settings.call_costs = 0;
    }
    return settings;
}
