/* What the driver's calls share inside one process. The handles that programs hold are pointers to these structures. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "sim_calls.h"
#include "node.h"

#define SIM_EXPORT __attribute__((visibility("default")))

#define SIM_MULTIPROCESSORS 108
#define SIM_RESIDENT_THREADS 2048 /* of a multiprocessor */
#define SIM_STACK_BYTES 1024      /* that each thread has from the beginning */

struct sim_capture; /* a stream being captured: capture.c */

struct CUstream_st {
    CUcontext context;
    uint32_t channel;
    uint32_t flags;
    int priority;
    struct sim_capture *capture; /* guarded by sim_process_lock */
    unsigned long long id;
};

enum { SIM_OWN = 8 }; /* threads with a default stream of their own */

struct CUctx_st {
    uint32_t magic;
    uint32_t device;
    uint32_t index;      /* in the device's contexts */
    uint32_t flags;
    uint32_t primary;
    uint32_t part;       /* it is a green context's: up to CUDA 12.9 it may be current to one thread only */
    CUcontext whole;     /* of a part, the primary context: what is allocated in the part is its */
    uint32_t holders;    /* times it is current, and to which thread; both guarded by sim_process_lock */
    const void *holder;
    uint32_t next_channel;
    uint32_t blocking;   /* bit per channel that a stream ordered with the legacy stream uses */
    uint32_t references; /* retains of a primary context; of others, how often they were attached besides */
    int alive;
    uint64_t life;       /* differs between the lives of a primary context, whose handle stays the same */
    uint64_t limits[16];
    struct CUstream_st legacy;
    struct CUstream_st per_thread[SIM_OWN]; /* threads beyond share them: their order is stricter than a real driver's */
};

struct CUevent_st {
    CUcontext context;
    uint32_t slot; /* SIM_NONE until first recorded */
    uint32_t flags;
    uint64_t generation;
    uint32_t device;
    uint32_t channel;
    uint32_t index;
    uint64_t position;           /* of its last record in its channel, for streams that wait for it */
    unsigned long long capture; /* in which it was last recorded, also once that has ended; 0: in none */
    int imported; /* another process's, opened by its handle */
};

/* Forgets what a context had allocated, without a call per allocation. */
void sim_forget_allocations(CUcontext context);

struct CUmod_st {
    CUcontext context;
    uint64_t bytes;
    uint64_t charged; /* 0 until its code is on the device: modules load lazily */
    CUfunction functions;
};

struct CUfunc_st {
    CUmodule module;
    CUfunction next; /* of its module */
    char name[128];
    uint8_t kind; /* OP_KERNEL, OP_MEET or OP_FLAG */
    uint8_t width;
    uint32_t meeting;
    uint32_t members;
    uint64_t solo_ns;
};

/* The process's seat on its node; valid once sim_ready() holds. */
extern struct sim_seat sim_seat;
/* Guards the process's own tables: allocations, graphs, captures, primary contexts. Taken before any device's lock. */
extern pthread_mutex_t sim_process_lock;

CUresult sim_initialise(void);
int sim_ready(void);

/* The calling thread's context; NULL when it has none. */
CUcontext sim_current(void);
CUresult sim_context_get(CUcontext *context); /* the same, as a result that a call can return */
CUresult sim_primary_get(uint32_t device, CUcontext *context);
/* The stream behind a handle, in the calling thread's context: the special handles included. */
CUresult sim_stream_get(CUstream handle, CUstream *stream);
CUstream sim_per_thread(CUstream handle); /* what the _ptsz and _ptds twins take for stream 0 */

/* Charges bytes to a context, if the device has them. */
CUresult sim_charge(CUcontext context, uint64_t bytes);
void sim_discharge(CUcontext context, uint64_t bytes);

/* Queues an operation in a stream, behind what it must wait for; blocks while the queue is full. Position may be NULL. */
CUresult sim_submit(CUstream stream, const struct sim_op *op, uint64_t *position);
/* Blocks until the channel of a context has come to the position, or the context's work was dropped. */
void sim_await(CUcontext context, uint32_t channel, uint64_t position);
uint64_t sim_tail(CUcontext context, uint32_t channel);
int sim_reached(CUcontext context, uint32_t channel, uint64_t position);
void sim_await_context(CUcontext context);

/* Kernels that spin until the host writes a word: only this process can see the word, so it writes it to the device. */
void sim_poll_flags(CUcontext context);
/* Lets a blocked operation at this position go on: a flag that was seen, a host function that has run. */
void sim_release_op(CUcontext context, uint32_t channel, uint64_t position);

/* Brings a function's module to the device if it is not there yet. */
CUresult sim_function_bring(CUfunction function);

/* Device work that no kernel's name describes: memset and copies on the device. */
struct sim_op sim_kernel_op(uint64_t solo_ns, uint8_t width);
struct sim_op sim_copy_op(uint64_t bytes, int from_device);

#endif
