/* What a test makes of the GPUs while they run: the lines of $SIMGPU_DIR/control, which NVML reads at each call. */
#ifndef SIMGPU_NVML_CONTROL_H
#define SIMGPU_NVML_CONTROL_H

#include <stddef.h>
#include <stdint.h>

/* One line: DEVICE WORD [VALUE [MORE]]; `*` in place of the number stands for every device. */
struct nvml_line {
    uint32_t device; /* SIM_NONE: every one */
    char word[16];
    char value[64];
    char more[16];
};

/* Reads up to `room` lines; returns how many there are of this form. None without the file. */
size_t nvml_control(struct nvml_line *lines, size_t room);

/* The last line of a device with this word; 0 where there is none. */
int nvml_control_of(uint32_t device, const char *word, struct nvml_line *line);

/* The number in the value of such a line; `fallback` where there is none. */
long nvml_control_number(uint32_t device, const char *word, long fallback);

#endif
