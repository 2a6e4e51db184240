/* hook_module.c: the variables of modules and libraries are device memory.
 *
 * The shim charges them once the driver has accepted the image: before that the bytes may be no image at all. It unloads at
 * once what does not fit.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks/hook.h"
#include "memory/granule.h"
#include "memory/image.h"

/* Small variables lie beside the code, in what a context costs. */
static uint64_t taken_by(const void *image, size_t size)
{
    uint64_t bytes = image_variables(image, size), whole = granule_up(bytes, GRANULE);
    return bytes < GRANULE ? 0 : whole < bytes ? UINT64_MAX : whole;
}

static uint64_t taken_by_file(const char *path)
{
    struct stat status;
    uint64_t bytes = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
        size_t size = (size_t)status.st_size;
        void *image = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
        if (image != MAP_FAILED) {
            bytes = taken_by(image, size);
            munmap(image, size);
        }
    }
    close(file);
    return bytes;
}

/* False: there is no room. A library knows no context, and is charged to the device that is current when it is loaded. */
static bool charge_for(enum kind kind, const void *handle, uint64_t bytes)
{
    CUcontext context;
    int index;
    if (likely(bytes == 0) || !current_owner(&context, &index))
        return true;
    if (!charge(index, bytes))
        return false;
    remember(kind, (uint64_t)(uintptr_t)handle, index, bytes, kind == KIND_MODULE ? context : NULL, 0);
    return true;
}

/* Beside its variables the driver takes what code needs, and says of none how much it is. */
static void ask_for_code(void)
{
    CUcontext context;
    int index;
    if (current_device(&context, &index))
        want_sample(index);
}

static CUresult module_loaded(CUresult result, CUmodule *module, uint64_t bytes)
{
    if (result == CUDA_SUCCESS)
        ask_for_code();
    if (result != CUDA_SUCCESS || charge_for(KIND_MODULE, *module, bytes))
        return result;
    REAL(cuModuleUnload)(*module);
    *module = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult library_loaded(CUresult result, CUlibrary *library, uint64_t bytes)
{
    if (result == CUDA_SUCCESS)
        ask_for_code();
    if (result != CUDA_SUCCESS || charge_for(KIND_LIBRARY, *library, bytes))
        return result;
    REAL(cuLibraryUnload)(*library);
    *library = NULL;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    PASS_UNLESS_ACTIVE(cuModuleLoad, module, path);
    CUresult result = REAL(cuModuleLoad)(module, path);
    return module_loaded(result, module, result == CUDA_SUCCESS ? taken_by_file(path) : 0);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    PASS_UNLESS_ACTIVE(cuModuleLoadData, module, image);
    CUresult result = REAL(cuModuleLoadData)(module, image);
    return module_loaded(result, module, result == CUDA_SUCCESS ? taken_by(image, IMAGE_ENDS_ITSELF) : 0);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                                   void **values)
{
    PASS_UNLESS_ACTIVE(cuModuleLoadDataEx, module, image, count, options, values);
    CUresult result = REAL(cuModuleLoadDataEx)(module, image, count, options, values);
    return module_loaded(result, module, result == CUDA_SUCCESS ? taken_by(image, IMAGE_ENDS_ITSELF) : 0);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    PASS_UNLESS_ACTIVE(cuModuleLoadFatBinary, module, image);
    CUresult result = REAL(cuModuleLoadFatBinary)(module, image);
    return module_loaded(result, module, result == CUDA_SUCCESS ? taken_by(image, IMAGE_ENDS_ITSELF) : 0);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    struct allocation allocation;
    PASS_UNLESS_ACTIVE(cuModuleUnload, module);
    bool ours = freeing(KIND_MODULE, (uint64_t)(uintptr_t)module, &allocation);
    return freed(REAL(cuModuleUnload)(module), ours, &allocation);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                                  unsigned int count, CUlibraryOption *library_options, void **library_values,
                                  unsigned int library_count)
{
    PASS_UNLESS_ACTIVE(cuLibraryLoadData, library, code, options, values, count, library_options, library_values,
                       library_count);
    CUresult result =
        REAL(cuLibraryLoadData)(library, code, options, values, count, library_options, library_values, library_count);
    return library_loaded(result, library, result == CUDA_SUCCESS ? taken_by(code, IMAGE_ENDS_ITSELF) : 0);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                                      unsigned int count, CUlibraryOption *library_options, void **library_values,
                                      unsigned int library_count)
{
    PASS_UNLESS_ACTIVE(cuLibraryLoadFromFile, library, path, options, values, count, library_options, library_values,
                       library_count);
    CUresult result =
        REAL(cuLibraryLoadFromFile)(library, path, options, values, count, library_options, library_values, library_count);
    return library_loaded(result, library, result == CUDA_SUCCESS ? taken_by_file(path) : 0);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    struct allocation allocation;
    PASS_UNLESS_ACTIVE(cuLibraryUnload, library);
    bool ours = freeing(KIND_LIBRARY, (uint64_t)(uintptr_t)library, &allocation);
    return freed(REAL(cuLibraryUnload)(library), ours, &allocation);
}
