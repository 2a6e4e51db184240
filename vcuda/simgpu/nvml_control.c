#include "nvml_control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_device.h"

enum { LINES = 256 };

size_t nvml_control(struct nvml_line *lines, size_t room)
{
    const char *directory = getenv("SIMGPU_DIR");
    char path[4096];
    char text[160];
    size_t count = 0;
    if (directory == NULL || snprintf(path, sizeof path, "%s/control", directory) >= (int)sizeof path) {
        return 0;
    }
    FILE *file = fopen(path, "re");
    while (file != NULL && count < room && fgets(text, sizeof text, file) != NULL) {
        struct nvml_line line = {0};
        char device[16];
        if (sscanf(text, "%15s %15s %63s %15s", device, line.word, line.value, line.more) >= 2 && *device != '#') {
            line.device = strcmp(device, "*") == 0 ? SIM_NONE : (uint32_t)strtoul(device, NULL, 10);
            lines[count++] = line;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return count;
}

int nvml_control_of(uint32_t device, const char *word, struct nvml_line *line)
{
    struct nvml_line lines[LINES];
    int found = 0;
    for (size_t i = 0, count = nvml_control(lines, LINES); i < count; i++) {
        if ((lines[i].device == device || lines[i].device == SIM_NONE) && strcmp(lines[i].word, word) == 0) {
            *line = lines[i];
            found = 1;
        }
    }
    return found;
}

long nvml_control_number(uint32_t device, const char *word, long fallback)
{
    struct nvml_line line;
    return nvml_control_of(device, word, &line) ? strtol(line.value, NULL, 10) : fallback;
}
