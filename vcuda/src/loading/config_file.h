/* config_file.h: reads what the node agent wrote (include/config.h) and refuses what it cannot be. */
#ifndef VCUDA_CONFIG_FILE_H
#define VCUDA_CONFIG_FILE_H

#include <stddef.h>

#include "config.h"

enum config_result { CONFIG_OK, CONFIG_ABSENT, CONFIG_BAD, CONFIG_NOT_NOW };

/* Reads and checks the file. On CONFIG_BAD `reason` says in a few words what was wrong; on CONFIG_NOT_NOW what the process lacks,
 * and it may be asked again. */
enum config_result config_read(const char *path, struct vcuda_config *config, char *reason, size_t reason_size);

/* The check alone, on `size` bytes that may be anything. Returns 1 when good. */
int config_check(const void *bytes, size_t size, char *reason, size_t reason_size);

#endif
