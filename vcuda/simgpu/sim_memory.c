/*
 * Device memory of a process. Addresses are numbers that nothing lies behind: contents are not simulated, except where the
 * host may touch them (managed and pinned memory). Small allocations share 2 MiB granules, as a driver's do.
 */
#include "sim_memory.h"

#include "handle.h"
#include "pool.h"

#include <stdlib.h>
#include <sys/mman.h>

#define FIRST_ADDRESS 0x0a0000000000ULL
#define SMALL_ALIGNMENT 512ULL

enum { BUCKETS = 4096 };

static struct sim_allocation *buckets[BUCKETS]; /* guarded by sim_process_lock, as all below */
static uint64_t next_address = FIRST_ADDRESS;

static struct sim_allocation **bucket_of(uint64_t address)
{
    return &buckets[(address / SMALL_ALIGNMENT * 0x9e3779b97f4a7c15ULL) >> 52];
}

CUresult sim_charge(CUcontext context, uint64_t bytes)
{
    context = sim_owner(context);
    struct sim_view view = sim_lock(&sim_seat, context->device);
    struct sim_context *owner = &view.device->contexts[context->index];
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (bytes <= sim_seat.node->settings.memory_bytes - view.device->used_bytes) {
        sim_truth_memory(view.truth, view.index, owner->truth, (int64_t)bytes);
        owner->bytes += bytes;
        view.device->used_bytes += bytes;
        result = CUDA_SUCCESS;
    }
    sim_unlock(&view);
    return result;
}

void sim_discharge(CUcontext context, uint64_t bytes)
{
    if (bytes != 0) {
        context = sim_owner(context);
    }
    if (bytes == 0 || !context->alive) {
        return;
    }
    struct sim_view view = sim_lock(&sim_seat, context->device);
    struct sim_context *owner = &view.device->contexts[context->index];
    owner->bytes -= bytes;
    view.device->used_bytes -= bytes;
    sim_truth_memory(view.truth, view.index, owner->truth, -(int64_t)bytes);
    sim_unlock(&view);
}

/* Says how much of what is charged to a context is managed memory. */
static void count_managed(CUcontext context, int64_t change)
{
    if (change != 0 && context->alive) {
        struct sim_view view = sim_lock(&sim_seat, context->device);
        view.device->contexts[context->index].managed += (uint64_t)change;
        sim_unlock(&view);
    }
}

uint64_t sim_addresses(uint64_t bytes, uint64_t alignment)
{
    uint64_t begin = (next_address + alignment - 1) / alignment * alignment;
    next_address = begin + sim_granules(bytes);
    return begin;
}

void sim_allocation_add(struct sim_allocation *made)
{
    struct sim_allocation **bucket = bucket_of(made->address);
    made->next = *bucket;
    *bucket = made;
}

struct sim_allocation *sim_allocation_find(uint64_t address)
{
    struct sim_allocation *found = *bucket_of(address);
    while (found != NULL && found->address != address) {
        found = found->next;
    }
    return found;
}

void sim_allocation_remove(struct sim_allocation *gone)
{
    struct sim_allocation **link = bucket_of(gone->address);
    while (*link != gone) {
        link = &(*link)->next;
    }
    *link = gone->next;
}

struct sim_allocation *sim_allocation_within(uint64_t address)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (struct sim_allocation *each = buckets[i]; each != NULL; each = each->next) {
            if (address >= each->address && address - each->address < each->bytes) {
                return each;
            }
        }
    }
    return NULL;
}

int sim_is_mapped(uint64_t address, uint64_t bytes)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (const struct sim_allocation *each = buckets[i]; each != NULL; each = each->next) {
            if (each->kind == SIM_MAPPED && each->address < address + bytes && address < each->address + each->bytes) {
                return 1;
            }
        }
    }
    return 0;
}

/* A granule that small allocations are cut from, one after the other; it goes when the last of them goes. */
struct sim_granule {
    CUcontext context;
    uint64_t address;
    uint64_t used;
    uint32_t live;
    CUmemGenericAllocationHandle handle; /* of its memory once some of it was handed out to others; else the context has it */
};

static struct sim_granule *open_granule; /* the one that still has room */

static CUresult split(CUcontext context, uint64_t bytes, CUmemGenericAllocationHandle *handle)
{
    struct sim_physical made;
    CUresult result = sim_physical_split(context, bytes, &made);
    if (result == CUDA_SUCCESS) {
        *handle = sim_physical_pack(made);
    }
    return result;
}

CUresult sim_allocation_own(struct sim_allocation *found, CUmemGenericAllocationHandle *handle)
{
    CUresult result = CUDA_SUCCESS;
    if (found->granule != NULL) {
        result = found->granule->handle != 0 ? CUDA_SUCCESS : split(found->context, SIM_GRANULE, &found->granule->handle);
        *handle = found->granule->handle;
        return result;
    }
    /* Of a pool's memory whole granules can leave it. */
    uint64_t bytes = found->kind == SIM_POOLED ? found->bytes / SIM_GRANULE * SIM_GRANULE : found->charged;
    if (found->handle == 0 && bytes != 0) {
        result = split(found->context, bytes, &found->handle);
        found->charged = 0;
        if (result == CUDA_SUCCESS && found->kind == SIM_POOLED) {
            found->pool->split += bytes;
        }
    }
    *handle = found->handle;
    return result;
}

static CUresult cut(CUcontext context, struct sim_allocation *made)
{
    uint64_t bytes = (made->bytes + SMALL_ALIGNMENT - 1) / SMALL_ALIGNMENT * SMALL_ALIGNMENT;
    struct sim_granule *granule = open_granule;
    if (granule == NULL || granule->context != context || granule->used + bytes > SIM_GRANULE) {
        CUresult result = sim_charge(context, SIM_GRANULE);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        granule = calloc(1, sizeof *granule);
        if (granule == NULL) {
            sim_discharge(context, SIM_GRANULE);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *granule = (struct sim_granule){.context = context, .address = sim_addresses(SIM_GRANULE, SIM_GRANULE)};
        open_granule = granule;
    }
    made->address = granule->address + granule->used;
    made->granule = granule;
    granule->used += bytes;
    granule->live++;
    return CUDA_SUCCESS;
}

static CUresult place(CUcontext context, struct sim_allocation *made)
{
    if (made->bytes < SIM_GRANULE && made->kind == SIM_LINEAR) {
        return cut(context, made);
    }
    if (made->kind == SIM_MANAGED) {
        uint64_t resident = sim_seat.node->settings.managed_resident ? sim_granules(made->bytes) : 0;
        CUresult result = sim_charge(context, resident);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        made->charged = resident;
        count_managed(context, (int64_t)resident);
        void *memory = mmap(NULL, sim_granules(made->bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        made->address = (uint64_t)(uintptr_t)memory;
        return memory == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    made->charged = sim_granules(made->bytes);
    made->address = sim_addresses(made->bytes, SIM_GRANULE);
    return sim_charge(context, made->charged);
}

CUresult sim_allocate(CUcontext context, uint64_t bytes, enum sim_memory kind, uint64_t *address)
{
    if (bytes == 0 || address == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > sim_seat.node->settings.memory_bytes && kind != SIM_MANAGED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sim_allocation *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct sim_allocation){.context = sim_owner(context), .bytes = bytes, .kind = kind};
    pthread_mutex_lock(&sim_process_lock);
    CUresult result = place(made->context, made);
    if (result == CUDA_SUCCESS) {
        sim_allocation_add(made);
        *address = made->address;
    }
    pthread_mutex_unlock(&sim_process_lock);
    if (result != CUDA_SUCCESS) {
        free(made);
    }
    return result;
}

static void give_back(struct sim_allocation *gone)
{
    struct sim_granule *granule = gone->granule;
    if (granule != NULL && --granule->live == 0) {
        if (granule->handle != 0) {
            sim_physical_ref(sim_physical_unpack(granule->handle), -1, NULL);
        } else {
            sim_discharge(granule->context, SIM_GRANULE);
        }
        if (open_granule == granule) {
            open_granule = NULL;
        }
        free(granule);
    }
    if (gone->kind == SIM_POOLED) {
        sim_pool_returned(gone->pool, gone->bytes, gone->handle != 0 ? gone->bytes / SIM_GRANULE * SIM_GRANULE : 0);
    }
    if (gone->handle != 0) {
        sim_physical_ref(sim_physical_unpack(gone->handle), -1, NULL);
    }
    if (gone->kind == SIM_MANAGED) {
        count_managed(gone->context, -(int64_t)gone->charged);
        munmap((void *)(uintptr_t)gone->address, sim_granules(gone->bytes));
    }
    sim_discharge(gone->context, gone->charged);
    free(gone);
}

CUresult sim_release(uint64_t address, enum sim_memory kind)
{
    pthread_mutex_lock(&sim_process_lock);
    struct sim_allocation *found = sim_allocation_find(address);
    int frees = found != NULL && (found->kind == kind || (kind == SIM_LINEAR && (found->kind == SIM_MANAGED ||
                                  found->kind == SIM_POOLED || found->kind == SIM_IMPORTED)));
    if (frees) {
        sim_allocation_remove(found);
        give_back(found);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return frees ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_forget_allocations(CUcontext context)
{
    pthread_mutex_lock(&sim_process_lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct sim_allocation **link = &buckets[i]; *link != NULL;) {
            struct sim_allocation *each = *link;
            if (each->context != context) {
                link = &each->next;
                continue;
            }
            *link = each->next;
            give_back(each);
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
}
