/* hook_sharing.c: memory opened by other processes. Its maker pays for it as long as he has it, and the container for what
 * others hold of it when he has it no more. */
#include "hooks/hook.h"

/* A handle is of a whole allocation; of a small one it keeps the block, with all that lies in it. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
    struct allocation allocation;
    CUdeviceptr base = pointer;
    size_t size;
    PASS_UNLESS_ACTIVE(cuIpcGetMemHandle, handle, pointer);
    CUresult result = REAL(cuIpcGetMemHandle)(handle, pointer);
    if (result != CUDA_SUCCESS)
        return result;
    REAL(cuMemGetAddressRange_v2)(&base, &size, pointer);
    if (allocations_find(&process()->allocations, KIND_LINEAR, base, &allocation)) {
        if (allocation.owner != 0)
            shared_with_others(KIND_BLOCK, allocation.owner);
        else
            shared_with_others(KIND_LINEAR, base);
    }
    return result;
}

/* Opened twice, it has one address, and is closed twice. */
static CUresult opened(CUresult result, const CUdeviceptr *pointer)
{
    CUcontext context;
    int index;
    if (result == CUDA_SUCCESS && current_owner(&context, &index)) {
        struct allocation import = {.key = *pointer,
                                    .context = (uint64_t)(uintptr_t)context,
                                    .device = (int16_t)index,
                                    .kind = KIND_IMPORT,
                                    .count = 1};
        allocations_join(&process()->allocations, &import);
        opened_of_others(+1);
    }
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    PASS_UNLESS_ACTIVE(cuIpcOpenMemHandle, pointer, handle, flags);
    return opened(REAL(cuIpcOpenMemHandle)(pointer, handle, flags), pointer);
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    PASS_UNLESS_ACTIVE(cuIpcOpenMemHandle_v2, pointer, handle, flags);
    return opened(REAL(cuIpcOpenMemHandle_v2)(pointer, handle, flags), pointer);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    PASS_UNLESS_ACTIVE(cuMemPoolImportPointer, pointer, pool, data);
    return opened(REAL(cuMemPoolImportPointer)(pointer, pool, data), pointer);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    struct allocation import;
    PASS_UNLESS_ACTIVE(cuIpcCloseMemHandle, pointer);
    CUresult result = REAL(cuIpcCloseMemHandle)(pointer);
    if (result == CUDA_SUCCESS && allocations_count(&process()->allocations, KIND_IMPORT, pointer, -1, &import) >= 0)
        opened_of_others(-1);
    return result;
}
