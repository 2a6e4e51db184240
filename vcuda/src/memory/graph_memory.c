#include "memory/graph_memory.h"

#include "hooks/hook.h"
#include "least.h"
#include "memory/graph_needs.h"

static uint64_t attribute(CUdevice ordinal, CUgraphMem_attribute which, uint64_t fallback)
{
    cuuint64_t value = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(ordinal, which, &value) == CUDA_SUCCESS ? value : fallback;
}

/* What the driver says of a device's graphs, asked without the lock: it may wait for what another thread does. */
struct look {
    uint64_t changes; /* of the device's figures when the driver was about to be asked */
    uint64_t reserved, used;
};

static void ask(const struct graph_device *device, struct look *look)
{
    struct graph_memory *ours = &process()->graphs;
    pthread_mutex_lock(&ours->lock);
    CUdevice ordinal = device->ordinal;
    uint64_t have = device->charged + device->aside;
    look->changes = device->changes;
    pthread_mutex_unlock(&ours->lock);
    look->reserved = attribute(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, have);
    look->used = attribute(ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, look->reserved);
}

/* Asks, and locks for what was seen to be written; where something is written meanwhile, it asks again. */
static void ask_and_lock(struct graph_device *device, struct look *look)
{
    struct graph_memory *ours = &process()->graphs;
    for (;;) {
        ask(device, look);
        pthread_mutex_lock(&ours->lock);
        if (device->changes == look->changes)
            return;
        pthread_mutex_unlock(&ours->lock);
    }
}

/* Makes the charge what the driver has reserved, of which the caller's `set_aside` is charged already; other calls under way have
 * set more aside, and settle their part of the growth themselves. What has been launched cannot be taken back: growth beyond what
 * was set aside is charged in any case. */
static void settle(int index, struct graph_device *device, uint64_t set_aside, uint64_t promised)
{
    struct look look;
    ask_and_lock(device, &look);
    uint64_t have = device->charged + device->aside, reserved = look.reserved;
    uint64_t more = reserved > have ? reserved - have : 0, ours = set_aside + more;
    device->aside -= least_of(set_aside, device->aside);
    device->promised -= promised;
    if (more != 0)
        charge_anyway(index, more);
    uint64_t grown = reserved > device->charged ? least_of(reserved - device->charged, ours) : 0;
    confirm(index, grown);
    discharge(index, ours - grown);
    if (reserved < device->charged) {
        unsettle(index, device->charged - reserved);
        discharge(index, device->charged - reserved);
    }
    device->charged = least_of(device->charged, reserved) + grown;
    device->changes++;
    pthread_mutex_unlock(&process()->graphs.lock);
}

/* How much of what an action may take the driver has reserved and no graph uses, which serves first. */
static uint64_t promise(struct graph_device *device, uint64_t most)
{
    struct look look;
    ask_and_lock(device, &look);
    uint64_t spare = look.reserved > look.used ? look.reserved - look.used : 0;
    uint64_t part = spare > device->promised ? least_of(spare - device->promised, most) : 0;
    device->promised += part;
    pthread_mutex_unlock(&process()->graphs.lock);
    return part;
}

/* No lock is held during the action: a launch waits for room where its stream's queue is full, and that may come with what
 * another thread launches. */
static CUresult grow(int index, struct graph_device *device, uint64_t most, graph_action *action, void *call)
{
    struct graph_memory *ours = &process()->graphs;
    uint64_t promised = promise(device, most), growth = most - promised;
    bool charged = growth == 0 || charge(index, growth);
    pthread_mutex_lock(&ours->lock);
    if (charged)
        device->aside += growth;
    else
        device->promised -= promised;
    pthread_mutex_unlock(&ours->lock);
    if (!charged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = action(call);
    settle(index, device, growth, promised);
    return result;
}

static struct graph_device *device_of(int index, CUdevice ordinal)
{
    struct graph_memory *ours = &process()->graphs;
    struct graph_device *device = &ours->devices[index];
    CUcontext context;
    int current;
    bool is_current = current_owner(&context, &current);
    pthread_mutex_lock(&ours->lock);
    if (device->context == NULL && is_current) {
        device->context = context;
        device->ordinal = ordinal;
    }
    pthread_mutex_unlock(&ours->lock);
    return device;
}

CUresult graph_memory_instantiate(CUgraph graph, CUgraphExec *made, bool uploads, graph_action *action, void *call)
{
    struct graph_memory *ours = &process()->graphs;
    CUdevice ordinal = -1;
    uint64_t most = graph != NULL && made != NULL ? graph_needs(graph, &ordinal) : 0;
    int index = most != 0 ? device_index(ordinal) : -1;
    if (index < 0)
        return action(call);
    struct graph_device *device = device_of(index, ordinal);
    uint64_t trims = __atomic_load_n(&device->trims, __ATOMIC_ACQUIRE);
    CUresult result = uploads ? grow(index, device, most, action, call) : action(call);
    if (result == CUDA_SUCCESS) {
        struct allocation row = {.key = (uint64_t)(uintptr_t)*made,
                                 .owner = uploads ? trims + 1 : 0,
                                 .extent = most,
                                 .device = (int16_t)index,
                                 .kind = KIND_GRAPH,
                                 .count = 1};
        __atomic_add_fetch(&ours->executables, 1, __ATOMIC_RELEASE);
        allocations_put(&process()->allocations, &row);
    }
    return result;
}

CUresult graph_memory_bring(CUgraphExec executable, graph_action *action, void *call)
{
    struct graph_memory *ours = &process()->graphs;
    struct allocation row;
    if (likely(__atomic_load_n(&ours->executables, __ATOMIC_ACQUIRE) == 0) ||
        !allocations_find(&process()->allocations, KIND_GRAPH, (uint64_t)(uintptr_t)executable, &row))
        return action(call);
    struct graph_device *device = &ours->devices[row.device];
    uint64_t trims = __atomic_load_n(&device->trims, __ATOMIC_ACQUIRE);
    if (row.owner == trims + 1)
        return action(call); /* its memory is there since an earlier launch */
    CUresult result = grow(row.device, device, row.extent, action, call);
    if (result == CUDA_SUCCESS) {
        row.owner = trims + 1;
        allocations_put(&process()->allocations, &row);
    }
    return result;
}

bool graph_memory_destroying(CUgraphExec executable, struct allocation *row)
{
    return __atomic_load_n(&process()->graphs.executables, __ATOMIC_ACQUIRE) != 0 &&
           allocations_take(&process()->allocations, KIND_GRAPH, (uint64_t)(uintptr_t)executable, row);
}

void graph_memory_destroyed(CUresult result, const struct allocation *row)
{
    if (result == CUDA_SUCCESS)
        settle(row->device, &process()->graphs.devices[row->device], 0, 0);
    else
        allocations_put(&process()->allocations, row);
}

CUresult graph_memory_trim(CUdevice ordinal)
{
    struct graph_memory *ours = &process()->graphs;
    int index = device_index(ordinal);
    if (index < 0)
        return device_refusal(ordinal);
    CUresult result = REAL(cuDeviceGraphMemTrim)(ordinal);
    struct graph_device *device = &ours->devices[index];
    pthread_mutex_lock(&ours->lock);
    bool trimmed = result == CUDA_SUCCESS && device->context != NULL;
    if (trimmed)
        __atomic_add_fetch(&device->trims, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&ours->lock);
    if (trimmed)
        settle(index, device, 0, 0);
    return result;
}

void graph_memory_context_ends(CUcontext context)
{
    struct graph_memory *ours = &process()->graphs;
    pthread_mutex_lock(&ours->lock);
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++) {
        struct graph_device *device = &ours->devices[i];
        if (device->context != context)
            continue;
        unsettle(i, device->charged);
        device->ending += device->charged;
        device->charged = 0;
        device->changes++;
    }
    pthread_mutex_unlock(&ours->lock);
}

void graph_memory_context_ended(CUcontext context, bool gone)
{
    struct graph_memory *ours = &process()->graphs;
    pthread_mutex_lock(&ours->lock);
    for (int i = 0; i < VCUDA_MAX_DEVICES; i++) {
        struct graph_device *device = &ours->devices[i];
        if (device->context != context)
            continue;
        if (gone) {
            discharge(i, device->ending);
            device->context = NULL;
            __atomic_add_fetch(&device->trims, 1, __ATOMIC_RELEASE);
        } else {
            confirm(i, device->ending);
            device->charged += device->ending;
        }
        device->ending = 0;
        device->changes++;
    }
    pthread_mutex_unlock(&ours->lock);
}
