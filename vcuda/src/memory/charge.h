/* charge.h: this process's charges in the container's ledger.
 *
 * The life of a charge: charge (false means: answer CUDA_ERROR_OUT_OF_MEMORY), the driver allocates, confirm; then
 * unsettle, the driver frees, discharge. When the driver fails: discharge after charge, confirm after unsettle.
 */
#ifndef VCUDA_CHARGE_H
#define VCUDA_CHARGE_H

#include <stdbool.h>
#include <stdint.h>

/* The limit in force: the schedule page's where a live one differs from the config. */
uint64_t memory_limit(int index);

/* Where only what a process has left behind is in the way, which died a moment ago, waits for the driver to release it: for some
 * seconds at most, as a process does that starts while another is torn down. */
bool charge(int index, uint64_t bytes);
/* What counts against the limit now, without what such processes have left behind. */
uint64_t memory_held(int index);
/* Charges what the driver did already; to be confirmed like any other. */
void charge_anyway(int index, uint64_t bytes);
/* Asks the node for the driver's figures from now on: the driver has taken what no call says, or a program wants to know. Does
 * not wait for them: the node may be silent. A program that asks often asks the node once in SAMPLE_EVERY_NS. */
#define SAMPLE_EVERY_NS 100000000u
void want_sample(int index);
void confirm(int index, uint64_t bytes);
void unsettle(int index, uint64_t bytes);
void discharge(int index, uint64_t bytes);

/* What this process could not write while another kept the ledger locked, in bytes of one device; all atomic. The driver has
 * done it, so that the ledger has to follow. */
struct late {
    uint64_t charges;    /* of charge_anyway */
    uint64_t discharges; /* unsettled until they are written */
    uint64_t orphans;    /* released by this process, and perhaps held by others (orphans.h) */
    int writing;         /* 1 while a thread writes them */
};
/* Writes what is late, as soon as the lock can be had. Cheap when nothing is. */
void write_what_is_late(int index);

#endif
