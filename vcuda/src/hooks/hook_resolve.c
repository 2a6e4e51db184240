/* hook_resolve.c: cuGetProcAddress, by which the runtime finds nearly everything.
 *
 * The driver decides which of its functions a name and a version mean; we only replace the address that it gives.
 * A table of names and versions of our own would bind wrong signatures as soon as a driver knows one more.
 */
#include "loading/driver.h"
#include "state.h"

static void replace(CUresult result, void **function)
{
    if (result != CUDA_SUCCESS || function == NULL || *function == NULL || state_mode() == MODE_INERT)
        return;
    void *hook = driver_hook_at(*function);
    if (hook != NULL)
        *function = hook;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    if (!driver_ready() || REAL(cuGetProcAddress) == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = REAL(cuGetProcAddress)(symbol, function, version, flags);
    replace(result, function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    if (!driver_ready() || REAL(cuGetProcAddress_v2) == NULL)
        return CUDA_ERROR_NOT_FOUND;
    CUresult result = REAL(cuGetProcAddress_v2)(symbol, function, version, flags, status);
    replace(result, function);
    return result;
}
