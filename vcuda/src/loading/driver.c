/* driver.c: finds the driver's functions, and which hook stands for which of their addresses. */
#include "loading/driver.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "loading/object_at.h"
#include "loading/publisher.h"
#include "loading/real_dlsym.h"

struct driver driver;
_Bool driver_bound; /* published with release once `driver` and `by_address` are whole */

static int publisher;            /* the process that copies them; atomic (publisher.h) */
static const void *bound_object; /* the driver as object_at knows it, and a handle of it; constant once driver_bound */
static void *bound_library;

/* One row per hook: its name, where its real function is kept, and the hook itself. */
static const struct hook {
    const char *name;
    size_t offset;
    void *function;
} hooks[] = {
#define HOOK(name) {#name, offsetof(struct driver, name), (void *)name},
#include "hooks/hooks.def"
};

static const struct {
    const char *name;
    size_t offset;
} uses[] = {
#define USE(name) {#name, offsetof(struct driver, name)},
#include "hooks/hooks.def"
};

#define HOOK_COUNT (sizeof hooks / sizeof hooks[0])
#define ADDRESS_BUCKETS 512 /* a power of two, more than twice HOOK_COUNT */
_Static_assert(HOOK_COUNT * 2 < ADDRESS_BUCKETS, "the address map stays half empty");

/* Open-addressed map from the driver's addresses to rows of `hooks`; constant once driver_bound. */
struct address {
    const void *address;
    void *function;
};
static struct address by_address[ADDRESS_BUCKETS];

static size_t bucket_of(const void *address)
{
    return ((uintptr_t)address >> 4) * 0x9E3779B97F4A7C15u >> 48 & (ADDRESS_BUCKETS - 1);
}

static void remember(struct address *map, const void *address, void *function)
{
    size_t i = bucket_of(address);
    while (map[i].address != NULL) {
        if (map[i].address == address)
            return; /* two names of one function: both hooks do the same */
        i = (i + 1) & (ADDRESS_BUCKETS - 1);
    }
    map[i] = (struct address){address, function};
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

/* What one thread found. */
struct found {
    struct driver driver;
    struct address by_address[ADDRESS_BUCKETS];
    void *library;
    const void *object;
};

static void fill(struct found *found, void *handle)
{
    for (size_t i = 0; i < HOOK_COUNT; i++) {
        void *real = real_dlsym(handle, hooks[i].name);
        memcpy((char *)&found->driver + hooks[i].offset, &real, sizeof real);
        if (real != NULL)
            remember(found->by_address, real, hooks[i].function);
    }
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; i++) {
        void *real = real_dlsym(handle, uses[i].name);
        memcpy((char *)&found->driver + uses[i].offset, &real, sizeof real);
    }
}

/* A handle that names the driver's library alone: what the caller passed may be a library that needs it. */
static void *driver_handle(void *handle)
{
    Dl_info info;
    void *found = handle != NULL ? real_dlsym(handle, "cuInit") : NULL;
    if (found != NULL && dladdr(found, &info) != 0)
        return dlopen(info.dli_fname, RTLD_LAZY | RTLD_LOCAL);
    return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
}

/* The first thread publishes its driver for all. A later thread waits for a copy of memory, and for nothing else; in the child of
 * a fork, where the thread that copied is not, it copies anew. */
static void publish(const struct found *found)
{
    while (!__atomic_load_n(&driver_bound, __ATOMIC_ACQUIRE)) {
        if (!publisher_may(&publisher)) {
            sched_yield();
            continue;
        }
        driver = found->driver;
        memcpy(by_address, found->by_address, sizeof by_address);
        bound_library = found->library;
        bound_object = found->object;
        __atomic_store_n(&driver_bound, true, __ATOMIC_RELEASE);
    }
}

/* No lock of ours is held over the loader's functions: a library's constructor runs under the loader's own lock, and may look
 * up the driver while another thread is in here. */
bool driver_bind(void *handle)
{
    if (__atomic_load_n(&driver_bound, __ATOMIC_ACQUIRE))
        return true;
    void *library = driver_handle(handle), *init = library != NULL ? real_dlsym(library, "cuInit") : NULL;
    struct found *found = init != NULL ? calloc(1, sizeof *found) : NULL;
    if (found != NULL) {
        fill(found, library);
        found->library = library;
        found->object = object_at(init);
        publish(found);
        free(found);
    }
    return __atomic_load_n(&driver_bound, __ATOMIC_ACQUIRE);
}

bool driver_owns(const void *address)
{
    return bound_object != NULL && object_at(address) == bound_object;
}

void *driver_symbol(const char *name)
{
    return real_dlsym(bound_library, name);
}
