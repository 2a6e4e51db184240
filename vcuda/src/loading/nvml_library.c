/* nvml_library.c: finds NVML's functions. */
#include "loading/nvml_library.h"

#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "loading/driver.h"
#include "loading/publisher.h"
#include "loading/real_dlsym.h"

struct nvml_library nvml_library;

static bool bound; /* published with release once the table is whole */

static const struct row {
    const char *name;
    size_t offset;
    void *function;
} rows[] = {
#define HOOK(name) {#name, offsetof(struct nvml_library, name), (void *)name},
#define USE(name) {#name, offsetof(struct nvml_library, name), NULL},
#include "hooks/nvml_hooks.def"
};
#define ROWS (sizeof rows / sizeof rows[0])

void *nvml_hook_named(const char *name)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].function;
    return NULL;
}

static void *library_behind(void *handle)
{
    Dl_info info;
    void *found = handle != NULL ? real_dlsym(handle, "nvmlDeviceGetUUID") : NULL;
    if (found != NULL && dladdr(found, &info) != 0)
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL);
    return dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* As driver_bind: no lock of ours is held over the loader's functions. */
bool nvml_bind(void *handle)
{
    static int publisher; /* atomic (publisher.h) */
    struct nvml_library found;
    if (likely(__atomic_load_n(&bound, __ATOMIC_ACQUIRE)))
        return true;
    void *library = library_behind(handle);
    if (library == NULL || real_dlsym(library, "nvmlDeviceGetUUID") == NULL)
        return __atomic_load_n(&bound, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < ROWS; i++) {
        void *real = real_dlsym(library, rows[i].name);
        memcpy((char *)&found + rows[i].offset, &real, sizeof real);
    }
    while (!__atomic_load_n(&bound, __ATOMIC_ACQUIRE)) {
        if (!publisher_may(&publisher)) {
            sched_yield();
            continue;
        }
        nvml_library = found;
        __atomic_store_n(&bound, true, __ATOMIC_RELEASE);
    }
    return true;
}
