#include "memory/graph_memory.h"

#include "hooks/hook.h"
#include "memory/graph_needs.h"

static uint64_t attribute(CUdevice ordinal, CUgraphMem_attribute which, uint64_t fallback)
{
    cuuint64_t value = 0;
    return REAL(cuDeviceGetGraphMemAttribute)(ordinal, which, &value) == CUDA_SUCCESS ? value : fallback;
}

/* Under the lock: makes the charge what the driver has reserved, of which `set_aside` is charged already. What has been
 * launched cannot be taken back: growth beyond what was set aside is charged in any case. */
static void settle(int index, struct graph_device *device, uint64_t set_aside)
{
    uint64_t have = device->charged + set_aside;
    uint64_t reserved = attribute(device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, have);
    if (reserved > have)
        charge_anyway(index, reserved - have);
    if (reserved >= device->charged) {
        confirm(index, reserved - device->charged);
        if (have > reserved)
            discharge(index, have - reserved);
    } else {
        discharge(index, set_aside);
        unsettle(index, device->charged - reserved);
        discharge(index, device->charged - reserved);
    }
    device->charged = reserved;
}

/* Under the lock. Reserved memory that no graph uses serves first. */
static CUresult grow(int index, struct graph_device *device, uint64_t most, graph_action *action, void *call)
{
    uint64_t reserved = attribute(device->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, 0);
    uint64_t used = attribute(device->ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, reserved);
    uint64_t spare = reserved > used ? reserved - used : 0, growth = most > spare ? most - spare : 0;
    if (growth != 0 && !charge(index, growth))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = action(call);
    settle(index, device, growth);
    return result;
}

static struct graph_device *device_of(int index, CUdevice ordinal)
{
    struct graph_device *device = &process()->graphs.devices[index];
    CUcontext context;
    int current;
    if (device->context == NULL && current_device(&context, &current)) {
        device->context = context;
        device->ordinal = ordinal;
    }
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
    pthread_mutex_lock(&ours->lock);
    struct graph_device *device = device_of(index, ordinal);
    CUresult result = uploads ? grow(index, device, most, action, call) : action(call);
    if (result == CUDA_SUCCESS) {
        struct allocation row = {.key = (uint64_t)(uintptr_t)*made,
                                 .owner = uploads ? device->trims + 1 : 0,
                                 .extent = most,
                                 .device = (int16_t)index,
                                 .kind = KIND_GRAPH,
                                 .count = 1};
        __atomic_add_fetch(&ours->executables, 1, __ATOMIC_RELEASE);
        allocations_put(&process()->allocations, &row);
    }
    pthread_mutex_unlock(&ours->lock);
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
    if (row.owner == __atomic_load_n(&device->trims, __ATOMIC_ACQUIRE) + 1)
        return action(call); /* its memory is there since an earlier launch */
    pthread_mutex_lock(&ours->lock);
    CUresult result = grow(row.device, device, row.extent, action, call);
    if (result == CUDA_SUCCESS) {
        row.owner = device->trims + 1;
        allocations_put(&process()->allocations, &row);
    }
    pthread_mutex_unlock(&ours->lock);
    return result;
}

void graph_memory_forget(CUgraphExec executable)
{
    struct graph_memory *ours = &process()->graphs;
    struct allocation row;
    if (!allocations_take(&process()->allocations, KIND_GRAPH, (uint64_t)(uintptr_t)executable, &row))
        return;
    pthread_mutex_lock(&ours->lock);
    settle(row.device, &ours->devices[row.device], 0);
    pthread_mutex_unlock(&ours->lock);
}

CUresult graph_memory_trim(CUdevice ordinal)
{
    struct graph_memory *ours = &process()->graphs;
    int index = device_index(ordinal);
    if (index < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&ours->lock);
    struct graph_device *device = &ours->devices[index];
    CUresult result = REAL(cuDeviceGraphMemTrim)(ordinal);
    if (result == CUDA_SUCCESS && device->context != NULL) {
        __atomic_add_fetch(&device->trims, 1, __ATOMIC_RELEASE);
        settle(index, device, 0);
    }
    pthread_mutex_unlock(&ours->lock);
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
    }
    pthread_mutex_unlock(&ours->lock);
}
