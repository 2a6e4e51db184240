/* loader.c: dlsym and dlvsym, interposed.
 *
 * The C library's dlsym is found by reading the symbol table of the object that holds it, since asking for it
 * by name would reach ourselves. RTLD_DEFAULT and RTLD_NEXT depend on who calls: loader_entry.S jumps to the
 * real function for them, so that the caller's return address is what the loader sees.
 */
#include "loading/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "loading/driver.h"
#include "loading/nvml_library.h"
#include "state.h"

typedef void *dlsym_function(void *, const char *);
typedef void *dlvsym_function(void *, const char *, const char *);

/* Set once by vcuda_loader_find, to the same value by whoever comes first; read by loader_entry.S. */
__attribute__((visibility("hidden"))) dlsym_function *vcuda_real_dlsym;
__attribute__((visibility("hidden"))) dlvsym_function *vcuda_real_dlvsym;

__attribute__((visibility("hidden"))) void vcuda_loader_find(void);
__attribute__((visibility("hidden"))) void *vcuda_dlsym(void *handle, const char *name);
__attribute__((visibility("hidden"))) void *vcuda_dlvsym(void *handle, const char *name, const char *version);

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

/* The first caller may be a sanitizer's runtime that is only half there and has hooks of its own on the string
 * functions: what runs then uses none. */
static bool begins(const char *text, const char *with)
{
    while (*with != '\0')
        if (*text++ != *with++)
            return false;
    return true;
}

static bool same(const char *one, const char *other)
{
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

static const char *file_of(const char *path)
{
    const char *file = path;
    for (; *path != '\0'; path++)
        if (*path == '/')
            file = path + 1;
    return file;
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

static int look_into(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    if (!is_c_library(object->dlpi_name))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        struct symbols symbols = {.base = object->dlpi_addr};
        const ElfW(Dyn) *entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_SYMTAB)
                symbols.table = dynamic_pointer(symbols.base, entry->d_un.d_ptr);
            else if (entry->d_tag == DT_STRTAB)
                symbols.names = dynamic_pointer(symbols.base, entry->d_un.d_ptr);
            else if (entry->d_tag == DT_GNU_HASH)
                symbols.gnu_hash = dynamic_pointer(symbols.base, entry->d_un.d_ptr);
        }
        if (symbols.table == NULL || symbols.names == NULL || symbols.gnu_hash == NULL)
            continue;
        void *found = find_in(&symbols, "dlsym");
        void *versioned = find_in(&symbols, "dlvsym");
        if (found != NULL && versioned != NULL) {
            vcuda_real_dlvsym = (dlvsym_function *)(uintptr_t)versioned;
            vcuda_real_dlsym = (dlsym_function *)(uintptr_t)found;
            return 1;
        }
    }
    return 0;
}

void vcuda_loader_find(void)
{
    if (vcuda_real_dlsym == NULL)
        dl_iterate_phdr(look_into, NULL);
}

void *loader_symbol(void *handle, const char *name)
{
    vcuda_loader_find();
    return vcuda_real_dlsym != NULL ? vcuda_real_dlsym(handle, name) : NULL;
}

/* Whether the address lies in a library whose file is called `stem`.so..., and not in the shim. */
static bool lies_in(const void *address, const char *stem)
{
    Dl_info info;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return false;
    return begins(file_of(info.dli_fname), stem);
}

/* Of several drivers in one process the first that was used serves all who ask: two at once would each know but half
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
    if (hook == NULL || hook == real || !lies_in(real, "libnvidia-ml.so") || state_mode() == MODE_INERT ||
        !nvml_bind(handle))
        return real;
    return hook;
}

/* A driver's own libraries get what they ask for: a stub that hands on to another file would be handed on to itself. */
static void *answer(const void *caller, void *handle, const char *name, void *real)
{
    void *instead = replace(handle, name, real);
    bool of_driver = instead != real && (lies_in(caller, "libcuda.so") || lies_in(caller, "libcudadebugger.so") ||
                                         lies_in(caller, "libnvidia-"));
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
