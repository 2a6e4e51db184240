/* ledger.h: the memory charged to this container, kept in a file that its processes share.
 *
 * The one truth is ledger_slot.charged: for each process and device one 8-byte word, changed by one store under
 * the lock. Everything else that the admission needs (the total of a device) is derived from these words and
 * computed anew by the process that finds that the last owner of the lock died. So there is no instruction at which a
 * SIGKILL could leave a sum that is wrong: either the word was written or it was not.
 *
 * A process charges before it asks the driver and discharges after the driver has freed, so what it holds is
 * never above what is charged. When it dies its words stay charged (state SLOT_DEAD) until the node has seen the
 * driver release the memory (ledger_sweep.c).
 */
#ifndef VCUDA_LEDGER_H
#define VCUDA_LEDGER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "schedule.h"

#define LEDGER_SLOTS 1024

enum slot_state { SLOT_FREE = 0, SLOT_LIVE = 1, SLOT_DEAD = 2 };

/* One process. Identity is (pid, start time, pid namespace): pids are reused and namespaces repeat them. */
struct ledger_slot {
    uint64_t state; /* enum slot_state; set last when a slot is taken, cleared first when it is given back */
    uint64_t pid;
    uint64_t start_time;    /* field 22 of /proc/PID/stat, clock ticks since boot */
    uint64_t namespace;     /* inode of /proc/self/ns/pid */
    uint64_t died_ns;       /* CLOCK_MONOTONIC when its death was noticed: later than its last instruction */
    uint64_t contexts;      /* CUDA contexts it holds, over all devices */
    uint64_t life_ended_ns; /* CLOCK_MONOTONIC when its helper thread was first seen to have ended; atomic */
    uint64_t reserved[1];
    uint64_t charged[VCUDA_MAX_DEVICES]; /* bytes; the truth */
    /* Of `charged`, what the driver may not hold at this moment: it was charged and is not allocated yet, or is being
     * freed and not discharged yet. And the most that this was in the device's window. Both atomic. */
    uint64_t unsettled[VCUDA_MAX_DEVICES];
    uint64_t most_unsettled[VCUDA_MAX_DEVICES];
    uint64_t in_flight[VCUDA_MAX_DEVICES];       /* CLOCK_MONOTONIC when it last had work on the device; atomic */
    uint64_t wanted[VCUDA_MAX_DEVICES];          /* and when it last had or wanted any; atomic */
    uint64_t in_flight_since[VCUDA_MAX_DEVICES]; /* when the earliest that it has in flight began; 0: none; atomic */
};

/* Derived or advisory, per device; under the lock unless said otherwise. */
struct ledger_device {
    uint64_t total;    /* sum of charged over all slots that are not free */
    uint64_t peak;     /* highest total + overhead ever */
    uint64_t overhead; /* what the driver holds for the container above `total`, by the node's last sample */
    /* The window in which the node's next sample must lie whole (ledger_begin_window). */
    uint64_t low, high;  /* lowest and highest total in it */
    uint64_t departed;   /* the most that was unsettled of processes that gave their slots back in it */
    uint64_t settled_ns; /* its begin, CLOCK_MONOTONIC; read without the lock, too */

    /* The following are atomics that any process adds to without the lock. */
    uint64_t oom; /* allocations refused */
    uint64_t launches, busy_ns, span_ns, throttled_ns, overrun_ns;
    int64_t credit_ns;    /* GPU time that the container may still use; negative: to be paid back */
    uint64_t credited_ns; /* up to when credit_ns was given; claimed by compare-and-swap */
    uint64_t claimed_ns;  /* up to here the GPU time of its processes is charged; CLOCK_MONOTONIC */
    uint64_t reserved[1];
};

/* What a process shares with others; both atomic. */
struct ledger_sharing {
    uint64_t exported[VCUDA_MAX_DEVICES]; /* part of `charged` that others may hold after this process freed it or died */
    uint64_t imported;                    /* allocations of other processes that it has open */
    uint64_t reserved[7];
};

/* Held by the helper thread of a slot's process for as long as that runs (ledger_life.c). */
struct ledger_life {
    pthread_mutex_t mutex; /* robust, shared between processes; all zero: there is no helper thread */
    char padding[64 - sizeof(pthread_mutex_t)];
};

struct ledger {
    struct vcuda_ledger_public public;
    char padding_public[4096 - sizeof(struct vcuda_ledger_public)];
    pthread_mutex_t lock; /* robust, shared between processes; guards all below but the atomics */
    char padding_lock[128 - sizeof(pthread_mutex_t)];
    uint64_t usage_sequence;   /* of the last usage record; under the lock */
    uint64_t usage_written_ns; /* CLOCK_MONOTONIC of it; claimed by compare-and-swap without the lock */
    uint64_t swept_ns;         /* CLOCK_MONOTONIC of the last liveness scan; claimed the same way */
    uint64_t slots_used;       /* slots beyond this were never taken; grows under the lock */
    uint64_t reserved[12];
    struct ledger_device devices[VCUDA_MAX_DEVICES];
    struct ledger_slot slots[LEDGER_SLOTS];
    struct ledger_sharing sharing[LEDGER_SLOTS]; /* of each slot */
    struct ledger_life lives[LEDGER_SLOTS];      /* of each slot */
};
_Static_assert(sizeof(struct ledger) <= VCUDA_LEDGER_SIZE, "the ledger fits its file");
_Static_assert(offsetof(struct ledger, slots_used) == VCUDA_LEDGER_SLOTS_USED_AT, "what the node agent reads");
_Static_assert(offsetof(struct ledger, slots) == VCUDA_LEDGER_SLOTS_AT, "what the node agent reads");
_Static_assert(sizeof(struct ledger_slot) == VCUDA_LEDGER_SLOT_SIZE, "what the node agent reads");
_Static_assert(LEDGER_SLOTS == VCUDA_LEDGER_SLOTS, "what the node agent reads");
_Static_assert(offsetof(struct ledger_slot, pid) == 8 && offsetof(struct ledger_slot, start_time) == 16, "and of each slot");

/* Maps the file and initialises it if no process has. NULL with a reason when it is missing, of another size, of
 * another version or not writable. `not_now`: the process lacks what it takes to open it, and may try again. */
struct ledger *ledger_open(const char *path, char *reason, size_t reason_size, bool *not_now);

/* Takes the lock, repairing the ledger when its last owner died, and the lock itself when it cannot be one. False when it
 * cannot be had: a stopped process holds it for longer than LEDGER_LOCK_MS, or what lies there is no lock any more and
 * cannot be made one. Then nothing may be changed. */
#ifndef LEDGER_LOCK_MS
#define LEDGER_LOCK_MS 10000
#endif
bool ledger_lock(struct ledger *ledger);
void ledger_unlock(struct ledger *ledger);

/* A robust mutex that processes share. */
bool ledger_make_mutex(pthread_mutex_t *mutex);
/* Makes the lock, of a new ledger and of one whose lock was overwritten. */
bool ledger_make_lock(struct ledger *ledger);
/* An exclusive flock on the ledger's file, for at most as long as the lock is waited for. */
bool ledger_lock_file(int file);

/* Under the lock: whether everything in the ledger can be true, and making it so. A slot in no known state counts as a dead
 * process's, so that the node's word decides; charges that no GPU could hold are forgotten; totals are derived anew. */
bool ledger_plausible(const struct ledger *ledger);
void ledger_repair(struct ledger *ledger);

/* Finds a slot for this process. -1 when all are taken. Takes the lock itself. */
int ledger_attach(struct ledger *ledger, uint64_t pid, uint64_t start_time, uint64_t namespace);

/* Gives the slot back: at once when nothing is charged to it, as one of a dead process otherwise. While calls are under
 * way in other threads it stays the slot of a live process, until a sweep finds that the process has ended. */
void ledger_detach(struct ledger *ledger, int slot);

/* The helper thread of the slot's process calls both. In between, the kernel marks the end of that thread, even by SIGKILL,
 * in the ledger, and ledger_life_ended finds it. */
bool ledger_begin_life(struct ledger *ledger, int slot);
void ledger_end_life(struct ledger *ledger, int slot);
/* Whether the helper thread of the slot's process ended so long ago that no thread of it is left. */
bool ledger_life_ended(struct ledger *ledger, int slot, uint64_t now_ns);

/* Charges `bytes` if the total stays within `limit`; `force` charges in any case (what the driver did already).
 * Returns whether it was charged; ledger_confirm follows once the driver holds it. Takes the lock itself: with `force`, false
 * means that the lock cannot be had. */
bool ledger_charge(struct ledger *ledger, int slot, int device, uint64_t bytes, uint64_t limit, bool force);
/* Takes back a charge that the driver does not hold (not yet, or after ledger_unsettle no more). False when the lock cannot be
 * had: then nothing has changed. */
bool ledger_discharge(struct ledger *ledger, int slot, int device, uint64_t bytes);

/* What was charged is held by the driver now; what it holds is about to be freed. No lock. */
void ledger_confirm(struct ledger *ledger, int slot, int device, uint64_t bytes);
void ledger_unsettle(struct ledger *ledger, int slot, int device, uint64_t bytes);

/* Under the lock: changes a device's total, and what is derived from it. */
void ledger_set_total(struct ledger_device *device, uint64_t total);
/* The most that a slot had unsettled on a device in its window. */
uint64_t ledger_most_unsettled(const struct ledger_slot *slot, int device);
/* Under the lock: forgets what was noted for the judgement of samples. Only samples begun later may be used. */
void ledger_begin_window(struct ledger *ledger, int device);

/* Of what a slot has charged, so much was exported. And how many allocations of others it opened or closed. No lock. */
void ledger_export(struct ledger *ledger, int slot, int device, uint64_t bytes);
void ledger_import(struct ledger *ledger, int slot, int change);
/* Whether some process that lives, or died after this time, has memory of others open. */
bool ledger_imports_open(const struct ledger *ledger, uint64_t died_since_ns);
/* Moves what the slot's process has released, and others may hold, to the container's orphans. False when there is no slot
 * for them: then nothing has changed. Takes the lock itself. */
bool ledger_orphan(struct ledger *ledger, int slot, int device, uint64_t bytes);

/* What counts against the limit now, in bytes. One unlocked read. */
uint64_t ledger_held(const struct ledger *ledger, int device);

/* Of what counts, what is charged to processes that died a moment ago, in bytes: the driver is about to release it, unless
 * others have it open. No lock. */
uint64_t ledger_leaving(const struct ledger *ledger, int device, uint64_t now_ns);

/* Notices processes that have died and, by what the node says of the driver's memory, releases what they held.
 * Reads /proc without the lock. `slot` is that of the container on the schedule page, NULL when there is no
 * fresh page; `index` its device. */
void ledger_sweep(struct ledger *ledger);
void ledger_true_up(struct ledger *ledger, int device, const struct vcuda_slot *slot, uint64_t now_ns);

#endif
