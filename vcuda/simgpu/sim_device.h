/*
 * The state of a simulated node, as it lies in memory shared by every process that uses its GPUs.
 *
 * There is no arbiter process. The next process that calls the driver advances a device's state from its own clock to the
 * present: new work can only arrive at the present, so the past can be computed late and still be exact.
 * Everything here is plain arrays and indices, never pointers: each process maps the node at another address, and a process
 * killed in the middle of a change must leave something that can be repaired.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include <pthread.h>
#include <stdint.h>

#include "settings.h"

enum {
    SIM_DEVICES = 8,
    SIM_CLIENTS = 512,  /* processes of one node */
    SIM_CONTEXTS = 256, /* contexts of one device */
    SIM_CHANNELS = 16,  /* hardware queues of one context; more streams share them */
    SIM_DEPTH = 1024,   /* operations that one queue holds; a launch into a full one blocks */
    SIM_EVENTS = 65536,
    SIM_HANDLES = 4096,  /* physical allocations that can outlive a process */
    SIM_MEETINGS = 64,   /* kernels that wait for each other, as collectives do */
    SIM_ENGINES = 2,     /* copy engines: to the device, from the device */
    SIM_SAMPLES = 128,   /* NVML's history of utilisation */
    SIM_NONE = 0xffffffff
};

#define SIM_GRANULE (2ULL << 20)
#define SIM_SAMPLE_NS 166666667ULL /* NVML samples utilisation about six times a second */

enum sim_kind { OP_KERNEL, OP_COPY, OP_RECORD, OP_WAIT, OP_HOST, OP_MEET, OP_FLAG, OP_FAULT };

/* One operation in a queue. Work is counted in picoseconds of the whole GPU, so that shared progress stays integral. */
struct sim_op {
    uint8_t kind;
    uint8_t engine;    /* OP_COPY: which copy engine */
    uint8_t width;     /* OP_KERNEL: percent of the GPU that the kernel fills; wider sums slow each other down */
    uint8_t started;   /* OP_MEET: has arrived */
    uint32_t slot;     /* OP_RECORD: event; OP_WAIT: device << 16 | context << 4 | channel; OP_MEET: meeting */
    uint64_t left_ps;  /* work left */
    uint64_t solo_ns;  /* how long it would take alone on the GPU */
    uint64_t target;   /* OP_RECORD: generation; OP_WAIT: position to be reached; OP_MEET: members, then arrivals needed */
};

/* A queue in order: operations head..tail are pending, the one at head runs or blocks. Positions only grow. */
struct sim_channel {
    uint64_t head;
    uint64_t tail;
    struct sim_op ops[SIM_DEPTH];
};

struct sim_context {
    uint32_t used;
    uint32_t client;
    uint32_t truth;    /* index of this context's record in the truth file */
    uint32_t pending;  /* bit per channel that holds operations */
    uint32_t copying;  /* bit per channel whose head is at work in a copy engine */
    uint32_t waiting;  /* processes' threads that wait for room or completion, for diagnosis only */
    uint64_t bytes;    /* device memory charged to this context: itself, its modules, its allocations */
    uint64_t managed;  /* of these, pages of managed memory: NVML names no process that has them */
    uint64_t busy_ns;  /* time in which it occupied the GPU */
    struct sim_channel channels[SIM_CHANNELS];
};

struct sim_event {
    uint32_t owner; /* client + 1; 0 when free */
    uint32_t reserved;
    uint64_t claims; /* times it was given out: the upper half of its generations */
    uint64_t done;  /* generation of the last record that completed */
    uint64_t time_ns;
    /* Of an event that several processes know (CU_EVENT_INTERPROCESS): its last record by any of them. */
    uint64_t recorded; /* generation */
    uint64_t position; /* in its channel */
    uint32_t source;   /* device << 16 | context << 4 | channel */
    uint32_t spare;
};

/* A physical allocation (cuMemCreate, exported memory): lives while a process refers to it or a descriptor holds it. */
struct sim_handle {
    uint32_t used;
    uint32_t truth;    /* truth record of the context that paid for it */
    uint32_t payer;    /* client that created it */
    uint32_t exported; /* a descriptor may hold it: ask its lock */
    uint32_t serial;   /* grows with every reuse of this entry */
    uint64_t bytes;
    uint16_t refs[SIM_CLIENTS];
};

struct sim_engine {
    uint32_t context; /* SIM_NONE when idle */
    uint32_t channel;
    uint32_t next; /* context that is asked first for the next copy */
};

struct sim_sample {
    uint64_t time_ns; /* end of the sample */
    uint64_t busy_ns; /* device busy within it */
    uint64_t context_ns[SIM_CONTEXTS];
};

struct sim_device {
    pthread_mutex_t lock; /* robust, shared: guards every field below */
    uint64_t clock_ns;    /* up to here the device has been simulated */
    uint32_t current;     /* context whose slice it is, or SIM_NONE */
    uint32_t resident;    /* context that ran last: coming back to it costs no switch */
    uint64_t slice_end_ns;
    uint64_t switch_end_ns; /* until then the GPU changes contexts and does no work */
    uint64_t random;
    uint64_t busy[SIM_CONTEXTS / 64]; /* bit per context with pending operations */
    uint64_t used_bytes;
    uint32_t handle_top; /* entries of handles and events that were ever used: no search goes beyond */
    uint32_t event_top;
    uint32_t event_next; /* where to look for a free event first */
    uint32_t reserved;
    uint64_t exports; /* physical allocations ever exported */
    uint64_t busy_ns;
    uint64_t sampled_ns;
    uint32_t sample_count;
    struct sim_engine engines[SIM_ENGINES];
    struct sim_sample samples[SIM_SAMPLES];
    struct sim_handle handles[SIM_HANDLES];
    struct sim_event events[SIM_EVENTS];
    struct sim_context contexts[SIM_CONTEXTS];
};

struct sim_client {
    uint32_t used;     /* 0 free, 1 alive, 2 dead and being torn down */
    uint32_t pid;      /* its own, in its PID namespace, plus the settings' offset */
    uint32_t group;    /* index of its container in the truth file */
    uint32_t fault;    /* 1 once a kernel of it failed: each later call returns the error. Atomic */
    uint64_t pid_namespace; /* inode of that namespace */
    uint64_t start_time;    /* its start, in clock ticks since the machine booted; 0 where /proc does not say */
    uint64_t dead_ns;  /* when it was last known to live, or later */
};

struct sim_node {
    uint32_t magic;
    uint32_t version;
    uint64_t size;
    struct sim_settings settings; /* fixed by the process that made the node */
    pthread_mutex_t lock;         /* robust, shared: guards the clients and the meetings */
    uint64_t clock_offset_ns;     /* atomic: how far a fast clock has run ahead */
    uint64_t reaped_ns;           /* atomic: when the last look for dead processes began that is over */
    uint64_t looked_ns;           /* sim_now when they were; under the lock */
    struct sim_client clients[SIM_CLIENTS];
    uint64_t meetings[SIM_MEETINGS]; /* atomic: arrivals so far */
    struct sim_device devices[SIM_DEVICES];
};

#endif
