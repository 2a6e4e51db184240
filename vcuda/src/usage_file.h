/* usage_file.h: writes include/usage.h's record from the ledger. */
#ifndef VCUDA_USAGE_FILE_H
#define VCUDA_USAGE_FILE_H

#include <stdbool.h>

/* Writes the record if no process of the container did within the last second; `now`: in any case. */
void usage_write(bool now);

#endif
