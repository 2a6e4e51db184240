/* loader.c: dlsym and dlvsym, interposed.
 *
 * RTLD_DEFAULT and RTLD_NEXT depend on the caller: loader_entry.S jumps to the real function for them, so that the caller's
 * return address is what the loader sees.
 */
#include <dlfcn.h>

#include "loading/driver.h"
#include "loading/nvml_library.h"
#include "loading/real_dlsym.h"
#include "state.h"

__attribute__((visibility("hidden"))) void *vcuda_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) void *vcuda_dlvsym(void *handle, const char *name, const char *version);

/* Whether the address lies in a library whose file is called `stem`.so..., and not in the shim. */
static bool lies_in(const void *address, const char *stem)
{
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return false;
    return begins(file_of(info.dli_fname), stem);
}

/* Of several drivers in one process the first that was used serves all callers: two at once would each know but half
 * of the program's contexts, and one of them would go past the limit. */
static void *of_driver(void *handle, const char *name, void *real)
{
    void *hook = hook_named(name);
    if (hook == real || !lies_in(real, "libcuda.so") || state_mode() == MODE_INERT || !driver_bind(handle))
        return real;
    if (hook != NULL)
        return hook;
    return driver_owns(real) ? real : driver_symbol(name);
}

/* What stands in for `real`, found by `name` behind `handle`. */
static void *replace(void *handle, const char *name, void *real)
{
    if (real == NULL || name == NULL)
        return real;
    if (name[0] == 'c' && name[1] == 'u')
        return of_driver(handle, name, real);
    if (!begins(name, "nvml"))
        return real;
    void *hook = nvml_hook_named(name);
    if (hook == NULL || hook == real || !lies_in(real, "libnvidia-ml.so") || state_mode() == MODE_INERT || !nvml_bind(handle))
        return real;
    return hook;
}

/* A driver's own libraries get what they ask for: a stub that hands on to another file would be handed on to itself. */
static void *answer(const void *caller, void *handle, const char *name, void *real)
{
    void *instead = replace(handle, name, real);
    bool of_driver = instead != real &&
                     (lies_in(caller, "libcuda.so") || lies_in(caller, "libcudadebugger.so") || lies_in(caller, "libnvidia-"));
    return of_driver ? real : instead;
}

void *vcuda_dlsym(void *handle, const char *name)
{
    return answer(__builtin_return_address(0), handle, name, vcuda_real_dlsym(handle, name));
}

void *vcuda_dlvsym(void *handle, const char *name, const char *version)
{
    return answer(__builtin_return_address(0), handle, name, vcuda_real_dlvsym(handle, name, version));
}
