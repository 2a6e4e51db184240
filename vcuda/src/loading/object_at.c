#include "loading/object_at.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

#include "loading/real_dlsym.h"

/* struct dl_find_object of glibc 2.35 and later, on processors without another unwinding base (x86-64, aarch64). */
struct found_object {
    unsigned long long flags;
    void *start, *end;
    struct link_map *map;
    void *eh_frame;
    unsigned long long reserved[7];
};
typedef int find_function(void *address, struct found_object *found);

/* NULL: an older glibc has none. */
static find_function *glibc_table(void)
{
    static find_function *table; /* atomic; threads that ask for it get the same */
    static int asked;            /* atomic; published with release once `table` is set */
    if (__atomic_load_n(&asked, __ATOMIC_ACQUIRE) == 0) {
        find_function *found = (find_function *)real_dlsym(RTLD_DEFAULT, "_dl_find_object");
        __atomic_store_n(&table, found, __ATOMIC_RELAXED);
        __atomic_store_n(&asked, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&table, __ATOMIC_RELAXED);
}

static const struct link_map *map_at(const void *address)
{
    find_function *find = glibc_table();
    struct found_object found = {0};
    Dl_info info;
    void *map = NULL;
    if (find != NULL)
        return find((void *)address, &found) == 0 ? found.map : NULL;
    return dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

bool object_at_is_called(const void *address, const char *stem)
{
    const struct link_map *map = map_at(address);
    return map != NULL && map->l_name != NULL && begins(file_of(map->l_name), stem);
}

const void *object_at(const void *address)
{
    const struct link_map *map = map_at(address);
    return map != NULL ? map->l_ld : NULL;
}
