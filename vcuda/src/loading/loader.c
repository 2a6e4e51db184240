/* loader.c: dlsym and dlvsym, interposed.
 *
 * RTLD_DEFAULT and RTLD_NEXT depend on the caller: loader_entry.S jumps to the real function for them, so that the caller's
 * return address is what the loader sees.
 */
#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <string.h>

#include "loading/driver.h"
#include "loading/nvml_library.h"
#include "loading/object_at.h"
#include "loading/real_dlsym.h"
#include "state.h"

__attribute__((visibility("hidden"))) void *vcuda_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) void *vcuda_dlvsym(void *handle, const char *name, const char *version);
__attribute__((visibility("hidden"))) void *vcuda_next(const char *name, const void *caller);

/* Of several drivers in one process the first that was used serves all callers: two at once would each know but half
 * of the program's contexts, and one of them would go past the limit. */
static void *of_driver(void *handle, const char *name, void *real)
{
    void *hook = hook_named(name);
    if (hook == real || !object_at_is_called(real, "libcuda.so") || state_mode() == MODE_INERT)
        return real;
    if (!driver_bind(handle)) /* it is no driver, or there is no memory: what is not found goes past no limit */
        return real_dlsym(handle, "cuInit") == NULL ? real : NULL;
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
    if (hook == NULL || hook == real || !object_at_is_called(real, "libnvidia-ml.so") || state_mode() == MODE_INERT ||
        !nvml_bind(handle))
        return real;
    return hook;
}

/* A driver's own libraries get what they ask for: a stub that hands on to another file would be handed on to itself. What is found
 * leaves no error (dlerror) of what the shim itself looked for and did not find. */
static void *answer(const void *caller, void *handle, const char *name, void *real)
{
    void *instead = replace(handle, name, real);
    bool of_driver =
        instead != real && (object_at_is_called(caller, "libcuda.so") || object_at_is_called(caller, "libcudadebugger.so") ||
                            object_at_is_called(caller, "libnvidia-"));
    void *found = of_driver ? real : instead;
    if (found != NULL)
        dlerror();
    return found;
}

void *vcuda_dlsym(void *handle, const char *name)
{
    return answer(__builtin_return_address(0), handle, name, vcuda_real_dlsym(handle, name));
}

void *vcuda_dlvsym(void *handle, const char *name, const char *version)
{
    return answer(__builtin_return_address(0), handle, name, vcuda_real_dlvsym(handle, name, version));
}

/* The library that the address lies in; NULL: none. */
static const struct link_map *library_of(const void *address)
{
    Dl_info info;
    void *map = NULL;
    return address != NULL && dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

/* A walk over the libraries behind one of them, in the order in which the loader searches them. Another thread may close any
 * meanwhile: the list is read only under the loader's own lock, in passes by dl_iterate_phdr, and the library at which the walk
 * stands is held open. A library is known by the address of its dynamic section. */
struct walk {
    const void *at;     /* where the walk stands */
    const void *passed; /* the last one behind it that could not be opened: closed meanwhile, or of no file; NULL: none */
    void *handle;       /* holds the library at which the walk stands; NULL: the one that asks, which runs */
    bool behind;        /* in a pass: one of these two was seen */
    const void *next;   /* what a pass found */
    bool fits;          /* its name is whole */
    char name[PATH_MAX];
};

static const void *dynamic_of(const struct dl_phdr_info *object)
{
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    return NULL;
}

/* Under the loader's lock: nothing is called but what copies a name. */
static int pass_over(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct walk *walk = argument;
    const void *dynamic = dynamic_of(object);
    (void)size;
    if (dynamic == NULL)
        return 0;
    if (dynamic == walk->at || dynamic == walk->passed) {
        walk->behind = true;
        walk->next = NULL;
    } else if (walk->behind && walk->next == NULL) {
        size_t length = strnlen(object->dlpi_name, sizeof walk->name);
        walk->fits = length < sizeof walk->name;
        memcpy(walk->name, object->dlpi_name, walk->fits ? length + 1 : 0);
        walk->next = dynamic;
    }
    return 0;
}

/* Goes on to the next library and holds it open; false: there are no more, and nothing is held. */
static bool go_on(struct walk *walk)
{
    for (walk->passed = NULL;; walk->passed = walk->next) {
        walk->behind = false;
        walk->next = NULL;
        dl_iterate_phdr(pass_over, walk);
        bool named = walk->next != NULL && walk->fits && walk->name[0] != '\0';
        void *handle = named ? dlopen(walk->name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        struct link_map *map = NULL;
        bool same = handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_ld == walk->next;
        if (handle != NULL && !same)
            dlclose(handle); /* another one under the name */
        if (!same && walk->next != NULL)
            continue;
        if (walk->handle != NULL)
            dlclose(walk->handle);
        walk->handle = same ? handle : NULL;
        walk->at = walk->next;
        return same;
    }
}

static void end_walk(struct walk *walk)
{
    if (walk->handle != NULL)
        dlclose(walk->handle);
}

/* What the library at which the walk stands itself defines under a name; NULL: nothing. */
static void *defined_at(const struct walk *walk, const char *name)
{
    void *found = vcuda_real_dlsym(walk->handle, name);
    const struct link_map *map = library_of(found);
    return map != NULL && map->l_ld == walk->at ? found : NULL;
}

/* Whether the library was linked with one whose file is called `stem`.so... */
static bool needs(const struct link_map *map, const char *stem)
{
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry != NULL && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            names = (const char *)entry->d_un.d_ptr;
    for (const ElfW(Dyn) *entry = map->l_ld; names != NULL && entry != NULL && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && begins(file_of(names + entry->d_un.d_val), stem))
            return true;
    return false;
}

/* The hook that a library gets which asks for what comes next behind itself (RTLD_NEXT) under a name of the driver's; NULL: the
 * real function is to answer. Libraries lie in the order in which the loader searches them, but those that were opened later
 * search what they need, which may have been there before them. */
void *vcuda_next(const char *name, const void *caller)
{
    bool cuda = name != NULL && name[0] == 'c' && name[1] == 'u';
    const char *stem = cuda ? "libcuda.so" : "libnvidia-ml.so";
    if (vcuda_real_dlsym == NULL || name == NULL || (!cuda && !begins(name, "nvml")) ||
        (cuda ? hook_named(name) : nvml_hook_named(name)) == NULL)
        return NULL;
    const struct link_map *asks = library_of(caller), *shim = library_of((const void *)&vcuda_next);
    if (asks == NULL || asks == shim)
        return NULL;
    struct walk walk = {.at = asks->l_ld};
    while (go_on(&walk)) {
        bool is_shim = walk.at == shim->l_ld;
        void *found = is_shim ? NULL : defined_at(&walk, name);
        if (!is_shim && found == NULL)
            continue;
        bool of_driver = !is_shim && begins(file_of(walk.name), stem);
        void *instead = of_driver ? answer(caller, NULL, name, found) : found;
        end_walk(&walk);
        return instead != found ? instead : NULL;
    }
    void *driver = needs(asks, stem) ? dlopen(cuda ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *found = driver != NULL ? vcuda_real_dlsym(driver, name) : NULL, *instead = answer(caller, driver, name, found);
    if (driver != NULL)
        dlclose(driver);
    return instead != found ? instead : NULL;
}
