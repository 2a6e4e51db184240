/* real_dlsym.c: found by reading the symbol table of the object that holds it, since asking for it by name would reach
 * ourselves. */
#include "loading/real_dlsym.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

dlsym_function *vcuda_real_dlsym;
dlvsym_function *vcuda_real_dlvsym;

struct symbols {
    const ElfW(Sym) * table;
    const char *names;
    const uint32_t *gnu_hash;
    ElfW(Addr) base;
};

/* Some loaders relocate the pointers of the dynamic section in place, others (the vDSO's) do not. */
static const void *dynamic_pointer(ElfW(Addr) base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static bool same(const char *one, const char *other)
{
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* Looks a defined function up in one object's GNU hash table (every glibc since 2.5 has one). */
static void *find_in(const struct symbols *symbols, const char *name)
{
    const uint32_t bucket_count = symbols->gnu_hash[0], first = symbols->gnu_hash[1], bloom = symbols->gnu_hash[2];
    const uint32_t *buckets = symbols->gnu_hash + 4 + bloom * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = buckets + bucket_count;
    const uint32_t hash = gnu_hash(name);

    uint32_t index = buckets[hash % bucket_count];
    if (index < first)
        return NULL;
    for (;; index++) {
        const ElfW(Sym) *symbol = &symbols->table[index];
        if ((chains[index - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            same(symbols->names + symbol->st_name, name))
            return (void *)(symbols->base + symbol->st_value);
        if (chains[index - first] & 1)
            return NULL;
    }
}

static bool is_c_library(const char *path)
{
    const char *file = file_of(path);
    return begins(file, "libc.so") || begins(file, "libdl.so") || begins(file, "libc-2") || begins(file, "libdl-2");
}

/* Takes both functions from the library at `base` with this dynamic section. */
static bool take_from(ElfW(Addr) base, const ElfW(Dyn) * entry)
{
    struct symbols symbols = {.base = base};
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            symbols.table = dynamic_pointer(base, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_STRTAB)
            symbols.names = dynamic_pointer(base, entry->d_un.d_ptr);
        else if (entry->d_tag == DT_GNU_HASH)
            symbols.gnu_hash = dynamic_pointer(base, entry->d_un.d_ptr);
    }
    if (symbols.table == NULL || symbols.names == NULL || symbols.gnu_hash == NULL)
        return false;
    void *found = find_in(&symbols, "dlsym"), *versioned = find_in(&symbols, "dlvsym");
    if (found == NULL || versioned == NULL)
        return false;
    vcuda_real_dlvsym = (dlvsym_function *)(uintptr_t)versioned;
    vcuda_real_dlsym = (dlsym_function *)(uintptr_t)found;
    return true;
}

static int look_into(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (!is_c_library(object->dlpi_name))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC &&
            take_from(object->dlpi_addr, (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr)))
            return 1;
    return 0;
}

/* By the library of dladdr1, which has both. A walk over all libraries is the way only where that is another's dladdr1: a program's
 * own dl_iterate_phdr may ask dlsym for the next one, and so us. */
void vcuda_loader_find(void)
{
    Dl_info info;
    void *found = NULL;
    if (vcuda_real_dlsym != NULL)
        return;
    const struct link_map *map = dladdr1((void *)(uintptr_t)dladdr1, &info, &found, RTLD_DL_LINKMAP) != 0 ? found : NULL;
    if (map == NULL || !is_c_library(map->l_name) || !take_from(map->l_addr, map->l_ld))
        dl_iterate_phdr(look_into, NULL);
}

void *real_dlsym(void *handle, const char *name)
{
    vcuda_loader_find();
    return vcuda_real_dlsym != NULL ? vcuda_real_dlsym(handle, name) : NULL;
}
