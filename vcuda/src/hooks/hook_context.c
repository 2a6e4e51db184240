/* hook_context.c: a context takes hundreds of MiB that no allocation shows; it is charged before it exists. */
#include "clock.h"
#include "hooks/hook.h"
#include "memory/context_memory.h"
#include "memory/granule.h"
#include "time/pacer.h"

/* What a bare context takes when the node has not measured it: a stack for each thread that can be on the device at one time,
 * room for each multiprocessor's state, and some in any case. Measured on an H100 (132 multiprocessors of 2,048 threads, driver
 * 580.159.04): 524 MiB, of which 264 are stacks; reported of an RTX 3090 (82 of 1,536, github.com/invoke-ai/InvokeAI/issues/9413):
 * 256 MiB, of which 123 are stacks. The estimate is 552 and 311. */
#define STACK_BYTES 1024ull /* that each thread has from the beginning */
#define STATE_BYTES (2ull << 20)
#define LEAST_BYTES (24ull << 20)
#define CONTEXT_BYTES (256ull << 20) /* of a device that does not say what it has */

/* By the index of the device; atomic: every thread that asks the driver sets the same. 0: not asked yet. */
static uint64_t estimates[VCUDA_MAX_DEVICES];

/* How many threads can be on the device at one time, and on how many multiprocessors; 0 where the driver does not say. */
static uint64_t threads_at_once(CUdevice device, uint64_t *multiprocessors)
{
    int count = 0, threads = 0;
    REAL(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
    *multiprocessors = count > 0 ? (uint64_t)count : 0;
    return threads > 0 ? *multiprocessors * (uint64_t)threads : 0;
}

static void estimate(CUdevice device, int index)
{
    uint64_t multiprocessors, threads = threads_at_once(device, &multiprocessors);
    uint64_t bytes = granule_up(threads * STACK_BYTES + multiprocessors * STATE_BYTES + LEAST_BYTES, GRANULE);
    __atomic_store_n(&estimates[index], threads != 0 ? bytes : CONTEXT_BYTES, __ATOMIC_RELAXED);
}

static uint64_t context_bytes(int index)
{
    uint64_t known = config.devices[index].context_bytes;
    return known != 0 ? known : __atomic_load_n(&estimates[index], __ATOMIC_RELAXED);
}

EXPORT CUresult cuInit(unsigned int flags)
{
    if (!driver_ready() || REAL(cuInit) == NULL)
        return CUDA_ERROR_NO_DEVICE;
    if (state_mode() == MODE_REFUSED)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    return REAL(cuInit)(flags);
}

/* Before a context: its index, or the error to answer. */
static CUresult reserve(CUdevice ordinal, int *index)
{
    *index = device_index(ordinal);
    if (*index < 0)
        return device_refusal(ordinal);
    if (context_bytes(*index) == 0)
        estimate(ordinal, *index);
    return charge(*index, context_bytes(*index)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* After it: remembered, or given back. */
static CUresult settle(CUresult result, int index, const CUcontext *context)
{
    if (result != CUDA_SUCCESS) {
        discharge(index, context_bytes(index));
        return result;
    }
    remember(KIND_CONTEXT, (uint64_t)(uintptr_t)*context, index, context_bytes(index), NULL, 0);
    want_sample(index);
    pacer_context_made(index);
    return result;
}

#define CREATES(name, parameters, ...)                          \
    EXPORT CUresult name parameters                             \
    {                                                           \
        int index;                                              \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                  \
        CUresult result = reserve(device, &index);              \
        if (result != CUDA_SUCCESS)                             \
            return result;                                      \
        return settle(REAL(name)(__VA_ARGS__), index, context); \
    }

CREATES(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device), context, flags, device)
CREATES(cuCtxCreate_v3, (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device),
        context, affinity, count, flags, device)
CREATES(cuCtxCreate_v4, (CUcontext * context, CUctxCreateParams *parameters, unsigned int flags, CUdevice device), context,
        parameters, flags, device)

/* How often a context that the program made is in use; 0 when it is none of these. */
static unsigned int uses_of(CUcontext context)
{
    struct allocation row;
    return allocations_find(&process()->allocations, KIND_CONTEXT, (uint64_t)(uintptr_t)context, &row) ? row.count : 0;
}

/* A primary context or a green one's, which the calls below do not end. */
static bool has_calls_of_its_own(CUcontext context)
{
    struct process *us = process();
    struct allocation part;
    bool has = false;
    pthread_mutex_lock(&us->contexts);
    for (uint32_t i = 0; i < config.device_count; i++)
        has = has || (context != NULL && us->primary[i] == context);
    pthread_mutex_unlock(&us->contexts);
    return has || allocations_find(&us->allocations, KIND_PART, (uint64_t)(uintptr_t)context, &part);
}

/* With `for_all_users` the context ends for all its users. One that the driver made without the shim may end with any call. */
static CUresult end(CUcontext context, bool for_all_users, __typeof__(cuCtxDestroy_v2) *driver_does)
{
    struct allocation row;
    struct context_memory memory;
    if (has_calls_of_its_own(context))
        return driver_does(context);
    unsigned int uses = uses_of(context);
    if (uses == 1 || (uses != 0 && for_all_users)) {
        context_memory_take(&memory, context, 0, true);
        CUresult result = driver_does(context);
        context_memory_settle(&memory, result == CUDA_SUCCESS);
        return result;
    }
    if (uses == 0)
        context_memory_unknown_ends(context);
    CUresult result = driver_does(context);
    if (result == CUDA_SUCCESS && uses != 0)
        allocations_count(&process()->allocations, KIND_CONTEXT, (uint64_t)(uintptr_t)context, -1, &row);
    return result;
}

#define ENDS(name, for_all_users)                       \
    EXPORT CUresult name(CUcontext context)             \
    {                                                   \
        PASS_UNLESS_ACTIVE(name, context);              \
        return end(context, for_all_users, REAL(name)); \
    }

ENDS(cuCtxDestroy, false)
ENDS(cuCtxDestroy_v2, true)
ENDS(cuCtxDetach, false)

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    struct allocation row;
    PASS_UNLESS_ACTIVE(cuCtxAttach, context, flags);
    CUresult result = REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS && !has_calls_of_its_own(*context) && uses_of(*context) != 0)
        allocations_count(&process()->allocations, KIND_CONTEXT, (uint64_t)(uintptr_t)*context, 1, &row);
    return result;
}

static bool primary_is_alive(CUdevice device)
{
    unsigned int flags;
    int alive = 0;
    REAL(cuDevicePrimaryCtxGetState)(device, &flags, &alive);
    return alive != 0;
}

#define OTHERS_WAIT_NS 1000000000u
#define FIRST_WAIT_NS 30000000000u /* the same for the first context of a device, which the driver may never finish making */
#define MOMENT_NS 20000u

/* Of the calling thread: its calls of this kind that are under way, one inside the other where the driver calls back a tool that
 * makes such a call itself; and whether an outer one of them has reserved the memory of the context that the driver makes. */
static __thread uint32_t under_way[VCUDA_MAX_DEVICES] __attribute__((tls_model("initial-exec")));
static __thread bool reserved[VCUDA_MAX_DEVICES] __attribute__((tls_model("initial-exec")));

/* Calls by which a primary context may begin or end go one by one for each device, so that none is charged twice and what goes
 * with one is known. No lock is held meanwhile. No call waits longer than this for one that may end a context: the driver may
 * wait for the context's work, and that for what this thread does. One that may make a context waits for no work, but the driver
 * may take seconds over it: others that may make one wait for it, and those that may end one wait half a minute where there is
 * none yet, since they would end what is not known. Where there is one, those wait no longer than for each other. A call inside
 * another of the same thread waits for none. */
static void begin_change(int index, bool makes)
{
    struct process *us = process();
    bool inside = under_way[index]++ != 0;
    uint64_t until = clock_ns() + OTHERS_WAIT_NS, at_last = clock_ns() + FIRST_WAIT_NS;
    pthread_mutex_lock(&us->contexts);
    while (!inside && ((us->making[index] != 0 && (makes || (us->primary[index] == NULL && clock_ns() < at_last))) ||
                       ((us->making[index] != 0 || us->ending[index] != 0) && clock_ns() < until))) {
        pthread_mutex_unlock(&us->contexts);
        clock_sleep(MOMENT_NS);
        pthread_mutex_lock(&us->contexts);
    }
    (makes ? us->making : us->ending)[index]++;
    pthread_mutex_unlock(&us->contexts);
}

static void end_change(int index, bool makes)
{
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    (makes ? us->making : us->ending)[index]--;
    pthread_mutex_unlock(&us->contexts);
    under_way[index]--;
}

/* The primary context that the shim knows of, and how often it is retained. */
static CUcontext primary_of(int index, uint32_t *retains)
{
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    CUcontext primary = us->primary[index];
    *retains = us->retains[index];
    pthread_mutex_unlock(&us->contexts);
    return primary;
}

static void note_retained(int index, CUcontext primary)
{
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    us->primary[index] = primary;
    us->retains[index]++;
    pthread_mutex_unlock(&us->contexts);
}

static void note_released(int index, bool by_one, bool gone)
{
    struct process *us = process();
    pthread_mutex_lock(&us->contexts);
    if (gone)
        us->primary[index] = NULL;
    if (by_one && us->retains[index] != 0)
        us->retains[index]--;
    pthread_mutex_unlock(&us->contexts);
}

/* Between begin_change and end_change. Where the driver fails, a call inside this one may have made the context all the same. */
static CUresult retain_in_turn(CUcontext *context, CUdevice device, int index)
{
    uint32_t retains;
    CUcontext primary = primary_of(index, &retains);
    bool first = !reserved[index] && (primary == NULL || !primary_is_alive(device));
    CUresult result = first ? reserve(device, &index) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS)
        return result;
    reserved[index] = reserved[index] || first;
    result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (first) {
        reserved[index] = false;
        primary = result == CUDA_SUCCESS ? *context : primary_of(index, &retains);
        bool made = result == CUDA_SUCCESS || (primary != NULL && primary_is_alive(device));
        settle(made ? CUDA_SUCCESS : result, index, &primary);
    }
    if (result == CUDA_SUCCESS)
        note_retained(index, primary != NULL ? primary : *context);
    return result;
}

static CUresult retain_primary(CUcontext *context, CUdevice device)
{
    int index = device_index(device);
    if (index < 0)
        return device_refusal(device);
    begin_change(index, true);
    CUresult result = retain_in_turn(context, device, index);
    end_change(index, true);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    PASS_UNLESS_ACTIVE(cuDevicePrimaryCtxRetain, context, device);
    return retain_primary(context, device);
}

/* The device's contexts that the driver made without the shim: the primary one may be among them. */
static void unknown_contexts_end(int index)
{
    CUcontext context;
    struct allocation row;
    for (uint32_t i = 0; pacer_context_at(i, index, &context); i++)
        if (context != NULL && !allocations_find(&process()->allocations, KIND_CONTEXT, (uint64_t)(uintptr_t)context, &row))
            context_memory_unknown_ends(context);
}

/* The last release ends the primary context. So does a reset (`for_all_users`), which takes no retain away. The driver says
 * whether the context ended: it also knows the retains that were made without the shim. */
static CUresult release_primary(CUdevice device, bool for_all_users, __typeof__(cuDevicePrimaryCtxRelease_v2) *driver_does)
{
    struct context_memory memory;
    int index = device_index(device);
    if (index < 0)
        return device_refusal(device);
    uint32_t retains;
    begin_change(index, false);
    CUcontext primary = primary_of(index, &retains);
    bool taken = primary != NULL && (for_all_users || retains == 1);
    if (taken)
        context_memory_take(&memory, primary, index, primary_is_alive(device));
    if (primary == NULL)
        unknown_contexts_end(index);
    CUresult result = driver_does(device);
    bool gone = primary != NULL && !primary_is_alive(device);
    if (gone && !taken)
        context_memory_take(&memory, primary, index, false);
    if (gone || taken)
        context_memory_settle(&memory, gone);
    note_released(index, result == CUDA_SUCCESS && !for_all_users, gone);
    end_change(index, false);
    return result;
}

#define RELEASES_PRIMARY(name, for_all_users)                      \
    EXPORT CUresult name(CUdevice device)                          \
    {                                                              \
        PASS_UNLESS_ACTIVE(name, device);                          \
        return release_primary(device, for_all_users, REAL(name)); \
    }

RELEASES_PRIMARY(cuDevicePrimaryCtxRelease, false)
RELEASES_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
RELEASES_PRIMARY(cuDevicePrimaryCtxReset, true)
RELEASES_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

/* A green context is a part of the primary one, which the driver keeps for it. So does the shim, and it charges the primary
 * context alone. The node sees what the part takes beyond that. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc resources, CUdevice device, unsigned int flags)
{
    CUcontext primary, context = NULL;
    PASS_UNLESS_ACTIVE(cuGreenCtxCreate, green, resources, device, flags);
    CUresult result = retain_primary(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuGreenCtxCreate)(green, resources, device, flags);
    if (result != CUDA_SUCCESS) {
        release_primary(device, false, REAL(cuDevicePrimaryCtxRelease_v2));
        return result;
    }
    REAL(cuCtxFromGreenCtx)(&context, *green);
    struct allocation row = {.key = (uint64_t)(uintptr_t)*green,
                             .owner = (uint64_t)(uintptr_t)context,
                             .extent = (uint64_t)device,
                             .kind = KIND_GREEN,
                             .count = 1};
    struct allocation part = {
        .key = (uint64_t)(uintptr_t)context, .owner = (uint64_t)(uintptr_t)primary, .kind = KIND_PART, .count = 1};
    allocations_put(&process()->allocations, &row);
    if (context != NULL)
        allocations_put(&process()->allocations, &part);
    want_sample(device_index(device));
    pacer_context_made(device_index(device));
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct allocation row, part;
    struct context_memory memory;
    PASS_UNLESS_ACTIVE(cuGreenCtxDestroy, green);
    if (!allocations_take(&process()->allocations, KIND_GREEN, (uint64_t)(uintptr_t)green, &row))
        return REAL(cuGreenCtxDestroy)(green);
    CUdevice device = (CUdevice)row.extent;
    if (row.owner != 0)
        context_memory_take(&memory, (CUcontext)(uintptr_t)row.owner, device_index(device), true);
    bool has_part = allocations_take(&process()->allocations, KIND_PART, row.owner, &part);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (row.owner != 0)
        context_memory_settle(&memory, result == CUDA_SUCCESS);
    if (result == CUDA_SUCCESS) {
        release_primary(device, false, REAL(cuDevicePrimaryCtxRelease_v2));
    } else {
        allocations_put(&process()->allocations, &row);
        if (has_part)
            allocations_put(&process()->allocations, &part);
    }
    return result;
}

/* Device memory that a limit takes at most; 0 for those that take none. A stack is there for each thread that can be on the
 * device at one time. */
static uint64_t taken_for(CUlimit limit, size_t value)
{
    CUdevice device;
    uint64_t bytes, multiprocessors;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE)
        return granule_up(value, GRANULE) >= value ? granule_up(value, GRANULE) : UINT64_MAX;
    if (limit != CU_LIMIT_STACK_SIZE || value <= STACK_BYTES || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return 0;
    if (__builtin_mul_overflow(value - STACK_BYTES, threads_at_once(device, &multiprocessors), &bytes))
        return UINT64_MAX;
    return granule_up(bytes, GRANULE);
}

/* The driver has set a limit: charged for it are `charged`, not confirmed, and what another thread may have set meanwhile. The last
 * to come here has the row. */
static void limit_set(const struct allocation *row, uint64_t charged)
{
    struct allocation before;
    if (allocations_replace(&process()->allocations, row, &before)) {
        unsettle(before.device, before.bytes);
        charged += before.bytes;
    }
    if (charged < row->bytes)
        charge_anyway(row->device, row->bytes - charged);
    confirm(row->device, row->bytes);
    if (charged > row->bytes)
        discharge(row->device, charged - row->bytes);
}

/* The heap that kernels allocate from, the buffer that they print to and their stacks are device memory. What a limit has taken so
 * far serves for what it takes anew. */
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    int index;
    struct allocation old;
    PASS_UNLESS_ACTIVE(cuCtxSetLimit, limit, value);
    bool takes = limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_STACK_SIZE;
    if (!takes || !current_owner(&context, &index))
        return REAL(cuCtxSetLimit)(limit, value);
    uint64_t key = (uint64_t)(uintptr_t)context ^ (uint64_t)limit, bytes = taken_for(limit, value);
    uint64_t has = allocations_find(&process()->allocations, KIND_LIMIT, key, &old) ? old.bytes : 0;
    uint64_t more = bytes > has ? bytes - has : 0;
    if (!charge(index, more))
        return CUDA_ERROR_OUT_OF_MEMORY;
    unsettle(index, has);
    CUresult result = REAL(cuCtxSetLimit)(limit, value);
    struct allocation row = {.key = key,
                             .bytes = bytes,
                             .context = (uint64_t)(uintptr_t)context,
                             .device = (int16_t)index,
                             .kind = KIND_LIMIT,
                             .count = 1};
    if (result == CUDA_SUCCESS)
        limit_set(&row, more);
    else
        discharge(index, more);
    confirm(index, has);
    return result;
}
