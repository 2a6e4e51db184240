#include "kernel_name.h"

#include <stdio.h>
#include <string.h>

#include "sim_device.h"

static uint64_t unit(const char *name)
{
    return strcmp(name, "ns") == 0 ? 1 : strcmp(name, "us") == 0 ? 1000 : strcmp(name, "ms") == 0 ? 1000000 : 0;
}

int sim_kernel_parse(const char *name, uint64_t fallback_ns, struct sim_kernel *kernel)
{
    char scale[3] = "";
    unsigned long long count = 0;
    unsigned width = 100;
    int end = 0;
    *kernel = (struct sim_kernel){.kind = OP_KERNEL, .width = 100, .solo_ns = fallback_ns};
    if (strcmp(name, "flag") == 0) {
        kernel->kind = OP_FLAG;
        return 1;
    }
    if (strcmp(name, "fault") == 0) {
        kernel->kind = OP_FAULT;
        return 1;
    }
    if (sscanf(name, "meet_%u_%u%n", &kernel->meeting, &kernel->members, &end) == 2 && name[end] == '\0') {
        kernel->kind = OP_MEET;
        return kernel->meeting < SIM_MEETINGS && kernel->members > 0;
    }
    if (sscanf(name, "spin_%2[nums]_%llu%n", scale, &count, &end) != 2 || unit(scale) == 0) {
        return 0;
    }
    if (name[end] != '\0') {
        int rest = 0;
        if (sscanf(name + end, "_w%u%n", &width, &rest) != 1 || name[end + rest] != '\0' || width < 1 || width > 100) {
            return 0;
        }
    }
    kernel->solo_ns = count * unit(scale);
    kernel->width = (uint8_t)width;
    return 1;
}
