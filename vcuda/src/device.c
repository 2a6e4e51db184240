#include "device.h"

#include <stdio.h>
#include <string.h>

#include "process.h"
#include "state.h"

#define ORDINALS 64

/* Index + 1 of each CUDA ordinal, -1 for one that was not given to the container, 0 while unknown. Every thread
 * that finds a value finds the same one. */
static int8_t index_of[ORDINALS];

/* "GPU-" and "MIG-" name the same 16 bytes in hex; compares only these. */
static bool names(const char *text, const CUuuid *uuid)
{
    char hex[40];
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(hex, sizeof hex, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3],
             b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    const char *dash = strchr(text, '-');
    return dash != NULL && strcmp(dash + 1, hex) == 0;
}

static CUresult uuid_of(CUdevice ordinal, CUuuid *uuid)
{
    if (REAL(cuDeviceGetUuid_v2) != NULL)
        return REAL(cuDeviceGetUuid_v2)(uuid, ordinal);
    return REAL(cuDeviceGetUuid) != NULL ? REAL(cuDeviceGetUuid)(uuid, ordinal) : CUDA_ERROR_NOT_FOUND;
}

int device_index(CUdevice ordinal)
{
    if (ordinal < 0 || ordinal >= ORDINALS)
        return -1;
    int known = __atomic_load_n(&index_of[ordinal], __ATOMIC_RELAXED);
    if (likely(known != 0))
        return known > 0 ? known - 1 : -1;
    CUuuid uuid;
    if (uuid_of(ordinal, &uuid) != CUDA_SUCCESS)
        return -1;
    int found = -1;
    for (uint32_t i = 0; i < config.device_count; i++)
        if (names(config.devices[i].uuid, &uuid))
            found = (int)i + 1;
    __atomic_store_n(&index_of[ordinal], (int8_t)found, __ATOMIC_RELAXED);
    return found > 0 ? found - 1 : -1;
}

bool device_of_location(const CUmemLocation *location, CUdevice *ordinal)
{
    bool localized = location->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    *ordinal = localized ? location->localized.deviceId : location->id;
    return localized || location->type == CU_MEM_LOCATION_TYPE_DEVICE;
}

CUresult device_refusal(CUdevice ordinal)
{
    CUuuid uuid;
    CUresult result = uuid_of(ordinal, &uuid);
    bool none = result == CUDA_ERROR_NOT_INITIALIZED || result == CUDA_ERROR_DEINITIALIZED;
    return none ? result : CUDA_ERROR_INVALID_DEVICE;
}

/* A thread seldom changes its context: what it last found is good until some context ends. */
static __thread struct {
    CUcontext context, owner;
    uint64_t ends;
    int index;
} last __attribute__((tls_model("initial-exec")));
static uint64_t contexts_ended; /* atomic */

void device_context_ends(void)
{
    __atomic_add_fetch(&contexts_ended, 1, __ATOMIC_RELEASE);
}

bool current_device(CUcontext *context, int *index)
{
    CUdevice ordinal;
    *context = NULL;
    if (REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || *context == NULL)
        return false;
    uint64_t ends = __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
    if (last.context != *context || last.ends != ends) {
        if (REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
            return false;
        last.index = device_index(ordinal);
        last.owner = device_context_for_all(*context);
        last.context = *context;
        last.ends = ends;
    }
    *index = last.index;
    return *index >= 0;
}

bool current_owner(CUcontext *owner, int *index)
{
    bool found = current_device(owner, index);
    *owner = found ? last.owner : NULL;
    return found;
}

CUcontext device_context_for_all(CUcontext context)
{
    struct allocation part;
    bool green = allocations_find(&process()->allocations, KIND_PART, (uint64_t)(uintptr_t)context, &part);
    return green ? (CUcontext)(uintptr_t)part.owner : context;
}

bool stream_device(CUstream stream, CUcontext *context, int *index)
{
    CUcontext its = NULL, popped;
    CUdevice ordinal;
    bool current = current_device(context, index);
    bool named = stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
    if (!named || REAL(cuStreamGetCtx) == NULL || REAL(cuStreamGetCtx)(stream, &its) != CUDA_SUCCESS || its == NULL ||
        its == *context)
        return current;
    if (REAL(cuCtxPushCurrent_v2)(device_context_for_all(its)) != CUDA_SUCCESS)
        return false;
    bool found = REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS;
    REAL(cuCtxPopCurrent_v2)(&popped);
    *context = its;
    *index = found ? device_index(ordinal) : -1;
    return *index >= 0;
}
