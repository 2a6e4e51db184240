/* driver.c: finds the driver's functions, and which hook stands for which of their addresses. */
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "loader.h"

struct driver driver;
_Bool driver_bound; /* published with release once `driver` and `by_address` are whole */

static pthread_mutex_t bind_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the filling of the tables below */

static void *bound_library;    /* a handle of the driver, and where it lies; constant once driver_bound */
static const void *bound_base;

/* One row per hook: its name, where its real function is kept, and the hook itself. */
static const struct hook {
    const char *name;
    size_t offset;
    void *function;
} hooks[] = {
#define HOOK(name) {#name, offsetof(struct driver, name), (void *)name},
#include "hooks.def"
};

static const struct {
    const char *name;
    size_t offset;
} uses[] = {
#define USE(name) {#name, offsetof(struct driver, name)},
#include "hooks.def"
};

#define HOOK_COUNT (sizeof hooks / sizeof hooks[0])
#define ADDRESS_BUCKETS 512 /* a power of two, more than twice HOOK_COUNT */
_Static_assert(HOOK_COUNT * 2 < ADDRESS_BUCKETS, "the address map stays half empty");

/* Open-addressed map from the driver's addresses to rows of `hooks`; constant once driver_bound. */
static struct {
    const void *address;
    void *function;
} by_address[ADDRESS_BUCKETS];

static size_t bucket_of(const void *address)
{
    return ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15u >> 48 & (ADDRESS_BUCKETS - 1);
}

static void remember(const void *address, void *function)
{
    size_t i = bucket_of(address);
    while (by_address[i].address != NULL) {
        if (by_address[i].address == address)
            return; /* two names of one function: both hooks do the same */
        i = (i + 1) & (ADDRESS_BUCKETS - 1);
    }
    by_address[i].address = address;
    by_address[i].function = function;
}

void *driver_hook_at(const void *address)
{
    for (size_t i = bucket_of(address); by_address[i].address != NULL; i = (i + 1) & (ADDRESS_BUCKETS - 1))
        if (by_address[i].address == address)
            return by_address[i].function;
    return NULL;
}

void *hook_named(const char *name)
{
    for (size_t i = 0; i < HOOK_COUNT; i++)
        if (strcmp(hooks[i].name, name) == 0)
            return hooks[i].function;
    return NULL;
}

static void fill(void *handle)
{
    for (size_t i = 0; i < HOOK_COUNT; i++) {
        void *real = loader_symbol(handle, hooks[i].name);
        memcpy((char *)&driver + hooks[i].offset, &real, sizeof real);
        if (real != NULL)
            remember(real, hooks[i].function);
    }
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        void *real = loader_symbol(handle, uses[i].name);
        memcpy((char *)&driver + uses[i].offset, &real, sizeof real);
    }
}

/* A handle that names the driver's library alone: what the caller passed may be a library that needs it. */
static void *driver_handle(void *handle)
{
    Dl_info info;
    void *found = handle != NULL ? loader_symbol(handle, "cuInit") : NULL;
    if (found != NULL && dladdr(found, &info) != 0)
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL);
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

bool driver_bind(void *handle)
{
    if (__atomic_load_n(&driver_bound, __ATOMIC_ACQUIRE))
        return true;
    pthread_mutex_lock(&bind_lock);
    if (!driver_bound) {
        void *library = driver_handle(handle);
        if (library != NULL && loader_symbol(library, "cuInit") != NULL) {
            Dl_info info;
            fill(library);
            bound_library = library;
            bound_base = dladdr(loader_symbol(library, "cuInit"), &info) != 0 ? info.dli_fbase : NULL;
            __atomic_store_n(&driver_bound, true, __ATOMIC_RELEASE);
        }
    }
    bool bound = driver_bound;
    pthread_mutex_unlock(&bind_lock);
    return bound;
}

bool driver_owns(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fbase == bound_base;
}

void *driver_symbol(const char *name)
{
    return loader_symbol(bound_library, name);
}
