/* schedule.h: who may use one GPU when, as the node agent says to every container on it; and the
 * first page of a container's ledger, in which its processes say what they want.
 *
 * THE SCHEDULE PAGE, one file per GPU, exactly VCUDA_SCHEDULE_SIZE bytes, little endian. The node
 * agent maps it writable, every container on that GPU has it bind-mounted read-only (config.h names
 * the path) and maps it read-only. Written about every 20 ms where two or more containers have work,
 * about every 40 ms elsewhere, never truncated or replaced.
 *
 * Times are CLOCK_MONOTONIC in nanoseconds, which all containers of a node share.
 *
 * Writing   One writer. generation + 1 (now odd); the body, then `checksum`; generation + 1 (even).
 * Reading   Read `generation`: odd, try again. Copy the page. Read `generation` again: changed, try
 *           again. Then the checksum must match. After eight failed tries keep the last good copy until `generation` changes.
 *           The checksum makes a writer without memory barriers (Python) safe on every processor.
 * Checksum  CRC-32 as in zlib over the bytes from `heartbeat_ns` up to `checksum`, the last four:
 *               zlib.crc32(page[32:-4])
 * Stale     When heartbeat_ns is older than stale_after_ns the writer has died: turns stay cyclic,
 *           so all containers go on by the last page, which is the same for all of them. A container
 *           that never saw a good page makes its own turns from its config's share.
 *
 * TURNS     Time is cut into periods: [epoch_ns + k * period_ns, epoch_ns + (k+1) * period_ns).
 *           Turn t lets the slot `turns[t].slot` launch in [start_ns, start_ns + length_ns) of each
 *           period; start_ns + length_ns <= period_ns. A slot may have several turns, and turns of
 *           different slots may overlap: an idle container keeps its turn, so that it can start at
 *           once, while the same time is lent to elastic and best-effort slots by turns of their own.
 *           A slot with no turn in a good page does not launch until it gets one (the shim still
 *           lets one launch go after VCUDA_HOLD_LIMIT_NS: work that others wait for cannot hang).
 *           Moving epoch_ns, period_ns and turns with every writing is allowed.
 */
#ifndef VCUDA_SCHEDULE_H
#define VCUDA_SCHEDULE_H

#include "usage.h"

#define VCUDA_SCHEDULE_MAGIC "FGSCHED" /* eight bytes with its NUL */
#define VCUDA_SCHEDULE_VERSION 1u
#define VCUDA_SCHEDULE_SLOTS 64
#define VCUDA_SCHEDULE_TURNS 128
#define VCUDA_PERIOD_NS 50000000u      /* usual period_ns */
#define VCUDA_STALE_NS 1000000000u     /* usual stale_after_ns */
#define VCUDA_HOLD_LIMIT_NS 100000000u /* a launch is not held longer, once its own process's work is done */

enum vcuda_slot_flags {
    VCUDA_SLOT_ACTIVE = 1, /* had or wanted GPU work in the last two periods */
    VCUDA_SLOT_NOTICE = 2  /* will be evicted at notice_ns: a pod within its budget waits for its share */
};

/* One container on this GPU. A slot with key 0 is free. */
struct vcuda_slot {
    uint64_t key;                /* the config's slot_key; another value: not this container's slot */
    uint64_t memory_limit_bytes; /* limit in force now; 0: as in the config */
    uint64_t driver_bytes;       /* device memory that the driver reports for all processes of this container */
    uint64_t driver_sampled_ns;  /* CLOCK_MONOTONIC right before the driver was asked for driver_bytes; 0: never asked.
                                  * Judged by what was charged from then on: a later time frees what is still held */
    uint64_t notice_ns;          /* with VCUDA_SLOT_NOTICE: when it will be evicted */
    uint32_t core_percent;       /* guaranteed share now, 0..100 */
    uint32_t effective_permille; /* share of the period that its turns cover now, 0..1000 */
    uint32_t policy;             /* enum vcuda_policy */
    uint32_t flags;              /* enum vcuda_slot_flags */
    uint64_t trim_permille;      /* NVML's slow correction: part of each turn to use, 1..1000; 0 means 1000 */
    uint64_t dead_gone_ns;       /* CLOCK_MONOTONIC right before the driver was last asked and named no process of this
                                  * container that is dead by its ledger; 0: never. What a process had to itself that
                                  * died seconds before is released by then, whatever driver_bytes says */
    uint64_t reserved[1];        /* zero */
};

struct vcuda_turn {
    uint32_t slot;      /* index into slots */
    uint32_t start_ns;  /* from the beginning of the period */
    uint32_t length_ns; /* > 0 */
    uint32_t reserved;  /* zero */
};

struct vcuda_schedule {
    char magic[8];           /* VCUDA_SCHEDULE_MAGIC */
    uint32_t version;        /* VCUDA_SCHEDULE_VERSION */
    uint32_t size;           /* VCUDA_SCHEDULE_SIZE */
    uint64_t generation;     /* seqlock: odd while the writer is at it; not under the checksum */
    uint64_t reserved_head;  /* zero */
    uint64_t heartbeat_ns;   /* when the writer was last here */
    uint64_t stale_after_ns; /* > 0 */
    uint64_t epoch_ns;       /* a moment at which a period begins; <= heartbeat_ns */
    uint32_t period_ns;      /* 1,000,000 .. 1,000,000,000 */
    uint32_t turn_count;     /* 0..VCUDA_SCHEDULE_TURNS; the rest of turns are zero */
    uint32_t slot_count;     /* slots up to this index are looked at, 0..VCUDA_SCHEDULE_SLOTS */
    uint32_t active_count;   /* slots with VCUDA_SLOT_ACTIVE */
    char uuid[VCUDA_UUID_SIZE];
    struct vcuda_slot slots[VCUDA_SCHEDULE_SLOTS];
    struct vcuda_turn turns[VCUDA_SCHEDULE_TURNS];
    uint32_t padding;  /* zero */
    uint32_t checksum; /* CRC-32 of bytes [32, VCUDA_SCHEDULE_SIZE - 4) */
};

#define VCUDA_SCHEDULE_SIZE 7296u
#define VCUDA_SCHEDULE_CHECKED_FROM 32u

/* THE LEDGER'S FIRST PAGE: what a container says to the node agent.
 *
 * File      /run/vcuda/ledger (config.h names it). The node agent makes it before the container starts:
 *           VCUDA_LEDGER_SIZE zero bytes, mode 0666, bind-mounted writable. The shim initialises it; of
 *           what follows the first 4096 bytes only the beginnings of slots are for others to read:
 *           which processes have one.
 * Reader    the node agent, by pread of the first 4096 bytes (never mmap: the container can truncate it).
 *           Every field is a single aligned 8-byte word written atomically; there is no checksum.
 * Trust     The container can write what it likes. The rule that makes that harmless: a claim to want
 *           time can only give a container the share that it is entitled to anyway (or, for elastic and
 *           best-effort work, a part of what is idle), never more. A time in the future, or a counter
 *           that runs backwards or faster than the clock, is to be clamped.
 *
 * A container is active on a device when activity_ns is younger than two periods: its processes set it
 * when a launch is made or held, and refresh it every few milliseconds while work is in flight.
 */
struct vcuda_activity {
    uint64_t activity_ns;      /* CLOCK_MONOTONIC when it last had or wanted GPU work; 0: never */
    uint64_t waiting_ns;       /* CLOCK_MONOTONIC when a launch was last held for its turn; 0: never */
    uint64_t busy_ns;          /* cumulative GPU time of this container as its shim measured it */
    uint64_t overrun_ns;       /* cumulative GPU time that ran past the end of its turns (part of busy_ns);
                           * the node agent takes it from later turns and gives it to those who lost it */
    uint64_t launches;         /* cumulative */
    uint64_t charged_bytes;    /* device memory charged now, the dead and not yet released included */
    uint64_t sample_wanted_ns; /* CLOCK_MONOTONIC when a program last asked what is free, or took what only the driver
                           * counts: a sample from after it is wanted soon. The node agent bounds how often it asks */
    uint64_t reserved[1];      /* zero */
};

struct vcuda_ledger_public {
    uint64_t magic;    /* VCUDA_LEDGER_MAGIC once the shim has initialised the file, 0 before */
    uint64_t version;  /* VCUDA_LEDGER_VERSION */
    uint64_t epoch_ns; /* CLOCK_REALTIME of initialisation */
    uint64_t reserved[5];
    struct vcuda_activity devices[VCUDA_MAX_DEVICES]; /* in the config's order */
};

/* A process's slot begins with three such words: its state (0: free), its pid in its own pid namespace, and its start time
 * in clock ticks since boot. The word at VCUDA_LEDGER_SLOTS_USED_AT says how many slots were ever taken. */
#define VCUDA_LEDGER_SLOTS_USED_AT 4248u
#define VCUDA_LEDGER_SLOTS_AT 6528u
#define VCUDA_LEDGER_SLOT_SIZE 832u
#define VCUDA_LEDGER_SLOTS 1024u

#define VCUDA_LEDGER_MAGIC 0x52474C4147465543ull
#define VCUDA_LEDGER_VERSION 1u
#define VCUDA_LEDGER_SIZE (4u << 20)

static_assert(sizeof(struct vcuda_slot) == 80, "slot is 80 bytes");
static_assert(offsetof(struct vcuda_slot, driver_bytes) == 16, "layout");
static_assert(offsetof(struct vcuda_slot, core_percent) == 40, "layout");
static_assert(offsetof(struct vcuda_slot, trim_permille) == 56, "layout");
static_assert(offsetof(struct vcuda_slot, dead_gone_ns) == 64, "layout");
static_assert(sizeof(struct vcuda_turn) == 16, "turn is 16 bytes");
static_assert(offsetof(struct vcuda_schedule, generation) == 16, "layout");
static_assert(offsetof(struct vcuda_schedule, heartbeat_ns) == VCUDA_SCHEDULE_CHECKED_FROM, "layout");
static_assert(offsetof(struct vcuda_schedule, epoch_ns) == 48, "layout");
static_assert(offsetof(struct vcuda_schedule, period_ns) == 56, "layout");
static_assert(offsetof(struct vcuda_schedule, turn_count) == 60, "layout");
static_assert(offsetof(struct vcuda_schedule, uuid) == 72, "layout");
static_assert(offsetof(struct vcuda_schedule, slots) == 120, "layout");
static_assert(offsetof(struct vcuda_schedule, turns) == 5240, "layout");
static_assert(offsetof(struct vcuda_schedule, checksum) == VCUDA_SCHEDULE_SIZE - 4, "checksum comes last");
static_assert(sizeof(struct vcuda_schedule) == VCUDA_SCHEDULE_SIZE, "the file's fixed size");
static_assert(sizeof(struct vcuda_activity) == 64, "activity is 64 bytes");
static_assert(offsetof(struct vcuda_activity, sample_wanted_ns) == 48, "layout");
static_assert(offsetof(struct vcuda_ledger_public, devices) == 64, "layout");
static_assert(sizeof(struct vcuda_ledger_public) <= 4096, "fits the first page");

#endif
