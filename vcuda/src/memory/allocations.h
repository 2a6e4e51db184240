/* allocations.h: what this process has allocated: the size, device and context behind each handle or pointer. */
#ifndef VCUDA_ALLOCATIONS_H
#define VCUDA_ALLOCATIONS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* Pointers and handles of different kinds may have the same value. LINEAR, BLOCK, PHYSICAL: `extent` 1 means exported. */
enum kind {
    KIND_NONE = 0,
    KIND_LINEAR,   /* CUdeviceptr of cuMemAlloc and its kin; `owner` is its block when it shares one */
    KIND_BLOCK,    /* address / 2 MiB + 1 of a block that small linear allocations share; count of them */
    KIND_CONTEXT,  /* CUcontext; bytes is the estimate charged for it, count how often it is attached */
    KIND_LIMIT,    /* CUcontext and CUlimit; what was set with cuCtxSetLimit */
    KIND_PHYSICAL, /* CUmemGenericAllocationHandle; count of its handles and mappings; `owner`: enum origin */
    KIND_MAPPING,  /* CUdeviceptr of cuMemMap; `owner` is the handle (0: of the host), `extent` how long it is */
    KIND_ARRAY,    /* CUarray, CUmipmappedArray */
    KIND_EXTERNAL, /* CUexternalMemory */
    KIND_GRAPH,    /* CUgraphExec that allocates: `extent` is how much at most, `owner` since which trim it is mapped */
    KIND_GREEN,    /* CUgreenCtx; `owner` is its CUcontext, `extent` the CUdevice */
    KIND_PART,     /* CUcontext of a green one; `owner` is the device's primary CUcontext */
    KIND_MODULE,   /* CUmodule with large variables */
    KIND_LIBRARY,  /* CUlibrary with large variables */
    KIND_IMPORT,   /* CUdeviceptr of another process's memory; count of how often it was opened */
};

/* What is behind a handle of physical memory. Only what was made here is charged here. */
enum origin { ORIGIN_MADE = 0, ORIGIN_IMPORTED, ORIGIN_MULTICAST };

struct allocation {
    uint64_t key;
    uint64_t bytes;   /* charged in the ledger */
    uint64_t context; /* CUcontext that takes it along when it is destroyed; 0: none */
    uint64_t owner;
    uint64_t extent;
    uint64_t serial; /* PHYSICAL: another one in each row that was ever made */
    uint32_t count;
    int16_t device;
    uint16_t kind;
};

/* Other processes may hold it after this process has freed it. */
static inline bool allocation_exported(const struct allocation *allocation)
{
    unsigned kind = allocation->kind;
    return allocation->extent != 0 && (kind == KIND_LINEAR || kind == KIND_BLOCK || kind == KIND_PHYSICAL);
}

#define ALLOCATION_STRIPES 32

/* A hash table in stripes, so that threads that allocate at once seldom wait for each other. */
struct allocations {
    struct stripe {
        pthread_mutex_t lock; /* guards the stripe's rows */
        struct allocation *rows;
        uint32_t capacity; /* a power of two, or 0 */
        uint32_t used;
    } stripes[ALLOCATION_STRIPES];
};

void allocations_start(struct allocations *all);

/* Adds one; false when there is no memory for it. A key already there is overwritten. */
bool allocations_put(struct allocations *all, const struct allocation *allocation);
bool allocations_find(struct allocations *all, enum kind kind, uint64_t key, struct allocation *found);
/* Removes it and hands it over: of several threads that free the same pointer, one gets it. */
bool allocations_take(struct allocations *all, enum kind kind, uint64_t key, struct allocation *found);
/* Adds one in place of what has its key; false when nothing has it. Without memory for it nothing changes. */
bool allocations_replace(struct allocations *all, const struct allocation *allocation, struct allocation *before);
/* Adds one to the count of the row with this key and returns true, or adds the row as it is and returns false. */
bool allocations_join(struct allocations *all, const struct allocation *allocation);
/* Adds `change` to the count; returns the new count, and at 0 removes it. -1 when it is not there. */
int64_t allocations_count(struct allocations *all, enum kind kind, uint64_t key, int change, struct allocation *found);
/* Takes one from the count of the row of which `seen` is a copy, and as allocations_count otherwise: -1 also when another has its key
 * by now. */
int64_t allocations_drop(struct allocations *all, const struct allocation *seen, struct allocation *found);
/* Sets the extent of a row; `before` is what it was. False when it is not there. */
bool allocations_mark(struct allocations *all, enum kind kind, uint64_t key, uint64_t extent, struct allocation *before);
/* Removes all rows of the context and hands over each, under a lock of the table's. */
void allocations_take_of_context(struct allocations *all, uint64_t context,
                                 void (*take)(void *argument, const struct allocation *row), void *argument);

#endif
