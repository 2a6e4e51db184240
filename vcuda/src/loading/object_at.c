#include "loading/object_at.h"

#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "loading/real_dlsym.h"

struct search {
    uintptr_t address;
    const char *stem; /* NULL: any name */
    const void *dynamic;
    bool is_called;
};

static bool has(const struct dl_phdr_info *object, uintptr_t address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && address - object->dlpi_addr - segment->p_vaddr < segment->p_memsz)
            return true;
    }
    return false;
}

/* Under the loader's lock, as dladdr is: the name is compared here, since its library may be closed afterwards. */
static int look(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct search *search = argument;
    (void)size;
    if (!has(object, search->address))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            search->dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    search->is_called = search->stem != NULL && object->dlpi_name != NULL && begins(file_of(object->dlpi_name), search->stem);
    return 1;
}

bool object_at_is_called(const void *address, const char *stem)
{
    struct search search = {.address = (uintptr_t)address, .stem = stem};
    dl_iterate_phdr(look, &search);
    return search.is_called;
}

const void *object_at(const void *address)
{
    struct search search = {.address = (uintptr_t)address};
    dl_iterate_phdr(look, &search);
    return search.dynamic;
}
