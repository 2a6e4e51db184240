/* Memory of other processes: legacy IPC handles, imported pointers of pools, and memory of other interfaces. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "handle.h"
#include "sim_memory.h"
#include "pool.h"

/* What a 64-byte handle says. Memory handed out so lives on until the last process that opened it has closed it. */
struct ticket {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    uint64_t address;
};

static CUresult describe(struct ticket *ticket, CUdeviceptr address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim_process_lock);
    struct sim_allocation *found = sim_allocation_within(address);
    if (found != NULL && found->kind != SIM_MANAGED && found->kind != SIM_MAPPED && found->kind != SIM_FOREIGN) {
        CUmemGenericAllocationHandle handle = 0;
        result = sim_allocation_own(found, &handle);
        *ticket = (struct ticket){.handle = handle, .bytes = found->bytes, .address = found->address};
    }
    pthread_mutex_unlock(&sim_process_lock);
    return result;
}

static CUresult attach(CUdeviceptr *address, const struct ticket *ticket, enum sim_memory kind)
{
    CUcontext context = NULL;
    CUresult result = sim_context_get(&context);
    struct sim_allocation *made = result == CUDA_SUCCESS ? calloc(1, sizeof *made) : NULL;
    if (made == NULL || address == NULL) {
        free(made);
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    if (ticket->handle != 0) {
        result = sim_physical_ref(sim_physical_unpack(ticket->handle), 1, NULL);
    }
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *made = (struct sim_allocation){
        .context = context, .bytes = ticket->bytes, .kind = kind, .handle = ticket->handle};
    pthread_mutex_lock(&sim_process_lock);
    made->address = sim_addresses(ticket->bytes, SIM_GRANULE);
    sim_allocation_add(made);
    *address = made->address;
    pthread_mutex_unlock(&sim_process_lock);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    SIM_ENTER(COST_VIRTUAL);
    struct ticket ticket = {0};
    CUresult result = handle == NULL ? CUDA_ERROR_INVALID_VALUE : describe(&ticket, address);
    if (result == CUDA_SUCCESS) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle->reserved, &ticket, sizeof ticket);
    }
    return result;
}

static CUresult open_ipc(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    struct ticket ticket;
    memcpy(&ticket, handle.reserved, sizeof ticket);
    int good = ticket.bytes != 0 && (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == 0;
    return good ? attach(address, &ticket, SIM_FOREIGN) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    SIM_ENTER(COST_VIRTUAL);
    return open_ipc(address, handle, flags);
}

SIM_EXPORT CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
    SIM_ENTER(COST_VIRTUAL);
    return open_ipc(address, handle, flags);
}

SIM_EXPORT CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
    SIM_ENTER(COST_VIRTUAL);
    return sim_release(address, SIM_FOREIGN);
}

/* Whole granules of a pool's allocations live until no process has them; the rest stays its exporter's. */
SIM_EXPORT CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    SIM_ENTER(COST_VIRTUAL);
    struct ticket ticket = {0};
    pthread_mutex_lock(&sim_process_lock);
    struct sim_allocation *found = sim_allocation_find(address);
    int good = data != NULL && found != NULL && found->kind == SIM_POOLED;
    CUresult result = good ? sim_allocation_own(found, &ticket.handle) : CUDA_ERROR_INVALID_VALUE;
    ticket.bytes = good ? found->bytes : 0;
    ticket.address = address;
    pthread_mutex_unlock(&sim_process_lock);
    if (result == CUDA_SUCCESS) {
        memset(data, 0, sizeof *data);
        memcpy(data->reserved, &ticket, sizeof ticket);
    }
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    SIM_ENTER(COST_VIRTUAL);
    struct ticket ticket = {0};
    if (pool == NULL || data == NULL || !pool->imported) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&ticket, data->reserved, sizeof ticket);
    CUresult result = ticket.bytes == 0 ? CUDA_ERROR_INVALID_VALUE : attach(address, &ticket, SIM_IMPORTED);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_process_lock);
        pool->reserved += ticket.bytes;
        pool->used += ticket.bytes;
        pthread_mutex_unlock(&sim_process_lock);
    }
    return result;
}

/* An imported pool is empty: pointers come into it one by one. */
SIM_EXPORT CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *exported, CUmemoryPool pool,
                                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)flags;
    SIM_ENTER(COST_VIRTUAL);
    if (exported == NULL || pool == NULL || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int file = memfd_create("simgpu-pool", MFD_CLOEXEC);
    if (file < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)exported = file;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *shared,
                                                               CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)flags;
    SIM_ENTER(COST_VIRTUAL);
    if (pool == NULL || (intptr_t)shared < 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = sim_pool_make(pool, 0, 0);
    if (result == CUDA_SUCCESS) {
        (*pool)->imported = 1;
    }
    return result;
}

struct CUextMemory_st {
    uint64_t bytes;
};

/* Memory of a graphics interface was allocated by it: nothing is charged here. */
SIM_EXPORT CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *from)
{
    SIM_ENTER(COST_VIRTUAL);
    if (memory == NULL || from == NULL || from->size == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUextMemory_st *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->bytes = from->size;
    *memory = made;
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                                            const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer)
{
    SIM_ENTER(COST_VIRTUAL);
    if (memory == NULL || buffer == NULL || buffer->offset + buffer->size > memory->bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct ticket ticket = {.bytes = buffer->size};
    return attach(address, &ticket, SIM_FOREIGN);
}

SIM_EXPORT CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory memory)
{
    SIM_ENTER(COST_VIRTUAL);
    if (memory == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(memory);
    return CUDA_SUCCESS;
}
