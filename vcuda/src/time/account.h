/* account.h: GPU time used, against GPU time given; shared by the container's processes through the ledger. */
#ifndef VCUDA_ACCOUNT_H
#define VCUDA_ACCOUNT_H

#include <stdint.h>

#include "time/schedule_page.h"

/* What a span shows of its launches. */
struct span_cost {
    uint64_t work_ns; /* the GPU time that they took, as near as can be said */
    uint64_t most_ns; /* the most that they can have taken, alone on the GPU; 0: not known */
    bool disturbed;   /* what others began in their turns may have run beside them */
    uint64_t cut_ns;  /* what they were charged where that is less than they seemed to take; otherwise 0 */
};

/* Charges what a process occupied from `begin` to `end` by the node's clock: whole within the turn in which it began,
 * divided by the containers at work after that. Time in which another process of the container was charged already is not
 * charged again. Nor is more than `solo_ns`, which the work would have taken alone on the GPU (0: unknown), where others may
 * have disturbed it: what runs over from another container's turn makes a span longer and is not this container's. `beside`:
 * how many other contexts of the process have work in flight; the GPU goes round by context. */
struct span_cost account_span(int index, uint64_t begin_ns, uint64_t end_ns, uint32_t launches, uint64_t solo_ns,
                              uint32_t beside);

/* Counts launches whose time was charged with others'. */
void account_launches(int index, uint32_t launches);

/* A process or a context counts as wanting work for so long after it last said so: it may sleep until its next turn. */
#define CONTENDER_NS (2u * VCUDA_PERIOD_NS)

/* Processes of this container that have or want work on the device, at least one: they share what may be queued. */
uint64_t account_contenders(int index);

/* Gives what the turns since the last call were worth; returns the credit. */
int64_t account_credit(int index, const struct turn *turn, uint64_t now_ns);

/* When the earliest of what this process has in flight began; 0: nothing is. */
void account_in_flight_since(int index, uint64_t since_ns);

/* Writes for the node and the container's other processes that this one has or wants work on the device. */
void account_active(int index, uint64_t now_ns, bool waiting);

/* The same for the node alone: what is in flight waits for the host, say, and takes no part of the GPU from the container's other
 * contexts and processes. */
void account_stands(int index, uint64_t now_ns);

/* Whether a launch on another device of the container was held in this time. What went on here may have waited for it. */
bool account_held_elsewhere(int index, uint64_t begin_ns, uint64_t end_ns);

#endif
