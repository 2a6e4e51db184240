/* Virtual memory management: address ranges, physical allocations, mappings, and descriptors that hold memory. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "handle.h"
#include "sim_memory.h"

/* Physical memory of the host: its references count in this process, and it takes nothing of a device. */
#define HOST_ALLOCATIONS 64
#define HOST_HANDLE 0x484f000000000000ULL /* apart from the handles of other memory and of multicast objects */

static struct {
    int references; /* handles and mappings; 0: free */
    uint64_t bytes;
} on_host[HOST_ALLOCATIONS]; /* guarded by sim_process_lock */

int sim_is_on_host(CUmemGenericAllocationHandle handle)
{
    return handle >= HOST_HANDLE && handle - HOST_HANDLE < HOST_ALLOCATIONS;
}

CUresult sim_host_refer(CUmemGenericAllocationHandle handle, int change, uint64_t *bytes)
{
    uint64_t number = handle - HOST_HANDLE;
    pthread_mutex_lock(&sim_process_lock);
    int there = on_host[number].references != 0;
    on_host[number].references += there ? change : 0;
    if (there && bytes != NULL) {
        *bytes = on_host[number].bytes;
    }
    pthread_mutex_unlock(&sim_process_lock);
    return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult make_on_host(CUmemGenericAllocationHandle *handle, uint64_t bytes)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim_process_lock);
    for (unsigned int i = 0; i < HOST_ALLOCATIONS && result != CUDA_SUCCESS; i++) {
        if (on_host[i].references == 0) {
            on_host[i].references = 1;
            on_host[i].bytes = bytes;
            *handle = HOST_HANDLE + i;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

/* Of CUDA 12.2 on, and of a node that is named: for HOST and HOST_NUMA_CURRENT cuMemCreate answers 1 (cuda.h). */
static int asks_for_host(const CUmemAllocationProp *properties)
{
    return SIM_DRIVER_VERSION >= 12020 && properties != NULL && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && properties->location.id == 0;
}

/* Of CUDA 13 on memory may be asked for in a part of a device's: its location has the ordinal in the first byte of the id. */
int sim_location_device(const CUmemLocation *location)
{
    int localized = SIM_DRIVER_VERSION >= 13000 && (int)location->type == 6; /* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN */
    if (!localized && location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return -1;
    }
    int device = localized ? location->id & 0xff : location->id;
    return device >= 0 && (uint32_t)device < sim_seat.node->settings.devices ? device : -1;
}

static int valid(const CUmemAllocationProp *properties)
{
    if (asks_for_host(properties)) {
        return 1;
    }
    return properties != NULL && properties->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           sim_location_device(&properties->location) >= 0;
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                                          CUmemAllocationGranularity_flags option)
{
    (void)option;
    SIM_ENTER(COST_QUERY);
    if (granularity == NULL || !valid(properties)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *granularity = SIM_GRANULE;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                                unsigned long long flags)
{
    (void)wanted;
    SIM_ENTER(COST_VIRTUAL);
    if (address == NULL || bytes == 0 || bytes % SIM_GRANULE != 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim_process_lock);
    *address = sim_addresses(bytes, alignment > SIM_GRANULE ? alignment : SIM_GRANULE);
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    SIM_ENTER(COST_VIRTUAL);
    return address == 0 || bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                                        const CUmemAllocationProp *properties, unsigned long long flags)
{
    SIM_ENTER(COST_VIRTUAL);
    if (handle == NULL || !valid(properties) || bytes == 0 || bytes % SIM_GRANULE != 0 || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (asks_for_host(properties)) {
        return make_on_host(handle, bytes);
    }
    struct sim_physical made;
    CUresult result = sim_physical_make((uint32_t)sim_location_device(&properties->location), bytes, &made);
    if (result == CUDA_SUCCESS) {
        *handle = sim_physical_pack(made);
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(COST_VIRTUAL);
    return sim_reference(handle, -1, NULL);
}

SIM_EXPORT CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                                     unsigned long long flags)
{
    SIM_ENTER(COST_VIRTUAL);
    uint64_t there = 0;
    struct sim_allocation *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = flags != 0 || offset != 0 || bytes == 0 ? CUDA_ERROR_INVALID_VALUE
                                                              : sim_reference(handle, 1, &there);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *made = (struct sim_allocation){.address = address, .bytes = bytes, .kind = SIM_MAPPED, .handle = handle};
    pthread_mutex_lock(&sim_process_lock);
    int fits = bytes <= there && !sim_is_mapped(address, bytes);
    if (fits) {
        sim_allocation_add(made);
    }
    pthread_mutex_unlock(&sim_process_lock);
    if (!fits) {
        sim_reference(handle, -1, NULL);
        free(made);
    }
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Whether a mapping that begins in the range goes on behind it. */
static int cuts_a_mapping(CUdeviceptr address, size_t bytes)
{
    int cuts = 0;
    pthread_mutex_lock(&sim_process_lock);
    for (uint64_t at = address; at < address + bytes; at += SIM_GRANULE) {
        const struct sim_allocation *found = sim_allocation_find(at);
        cuts = cuts || (found != NULL && found->kind == SIM_MAPPED && at + found->bytes > address + bytes);
    }
    pthread_mutex_unlock(&sim_process_lock);
    return cuts;
}

/* Ends every mapping in the range; a part of one cannot be ended. */
SIM_EXPORT CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    SIM_ENTER(COST_VIRTUAL);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (cuts_a_mapping(address, bytes)) {
        return result;
    }
    for (uint64_t at = address; at < address + bytes; at += SIM_GRANULE) {
        pthread_mutex_lock(&sim_process_lock);
        struct sim_allocation *found = sim_allocation_find(at);
        if (found != NULL && found->kind == SIM_MAPPED) {
            sim_allocation_remove(found);
        } else {
            found = NULL;
        }
        pthread_mutex_unlock(&sim_process_lock);
        if (found != NULL) {
            result = sim_reference(found->handle, -1, NULL);
            free(found);
        }
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    SIM_ENTER(COST_VIRTUAL);
    return address == 0 || bytes == 0 || access == NULL || count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    SIM_ENTER(COST_VIRTUAL);
    pthread_mutex_lock(&sim_process_lock);
    const struct sim_allocation *found = sim_allocation_within((uint64_t)(uintptr_t)address);
    CUmemGenericAllocationHandle held = found != NULL && found->kind == SIM_MAPPED ? found->handle : 0;
    pthread_mutex_unlock(&sim_process_lock);
    if (held == 0 || handle == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = held;
    return sim_reference(held, 1, NULL);
}

/* The descriptor's lock on its file lasts while a copy of the descriptor is open: by it the node knows that memory is held. */
static int open_descriptor(struct sim_physical physical)
{
    char path[4096];
    if (sim_handle_path(physical.device, physical.index, physical.serial, path, sizeof path) != 0) {
        return memfd_create("simgpu-handle", MFD_CLOEXEC);
    }
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct flock range = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    if (file >= 0 && fcntl(file, F_OFD_SETLK, &range) != 0) {
        close(file);
        return -1;
    }
    return file;
}

/* No process can import it. Its descriptor keeps the object to the end of the process, even once it is closed. */
static CUresult export_object(int *exported, CUmemGenericAllocationHandle object)
{
    int file = memfd_create("simgpu-multicast", MFD_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *exported = file;
    return sim_reference(object, 1, NULL);
}

SIM_EXPORT CUresult CUDAAPI cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
                                                         CUmemAllocationHandleType type, unsigned long long flags)
{
    SIM_ENTER(COST_VIRTUAL);
    struct sim_physical physical = sim_physical_unpack(handle);
    if (exported == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0) {
        return type == CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_is_multicast(handle) || sim_is_on_host(handle)) {
        return export_object(exported, handle);
    }
    if (sim_physical_ref(physical, 0, NULL) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int file = open_descriptor(physical);
    if (file < 0 || pwrite(file, &handle, sizeof handle, 0) != (ssize_t)sizeof handle) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    sim_physical_exported(physical);
    *(int *)exported = file;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                                           CUmemAllocationHandleType type)
{
    SIM_ENTER(COST_VIRTUAL);
    CUmemGenericAllocationHandle found = 0;
    int file = (int)(intptr_t)shared;
    if (handle == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread(file, &found, sizeof found, 0) != (ssize_t)sizeof found) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_physical_ref(sim_physical_unpack(found), 1, NULL);
    if (result == CUDA_SUCCESS) {
        *handle = found;
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                                   CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(COST_QUERY);
    struct sim_physical physical = sim_physical_unpack(handle);
    if (properties == NULL || sim_reference(handle, 0, NULL) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(properties, 0, sizeof *properties);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties->location.type = sim_is_on_host(handle) ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    properties->location.id = sim_is_on_host(handle) ? 0 : (int)physical.device;
    return CUDA_SUCCESS;
}
