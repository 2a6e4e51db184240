/* hook_external.c: imported memory of Vulkan, Direct3D or NvSci. Nothing else in the container charges it. */
#include "hooks/hook.h"
#include "memory/granule.h"

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    CUcontext context;
    int index;
    PASS_UNLESS_ACTIVE(cuImportExternalMemory, memory, description);
    if (memory == NULL || description == NULL || !current_owner(&context, &index))
        return REAL(cuImportExternalMemory)(memory, description);
    uint64_t bytes = granule_up(description->size, GRANULE);
    if (bytes < description->size || !charge(index, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL(cuImportExternalMemory)(memory, description);
    if (result == CUDA_SUCCESS)
        remember(KIND_EXTERNAL, (uint64_t)(uintptr_t)*memory, index, bytes, context, 0);
    else
        discharge(index, bytes);
    return result;
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    struct allocation allocation;
    PASS_UNLESS_ACTIVE(cuDestroyExternalMemory, memory);
    bool ours = freeing(KIND_EXTERNAL, (uint64_t)(uintptr_t)memory, &allocation);
    return freed(REAL(cuDestroyExternalMemory)(memory), ours, &allocation);
}
