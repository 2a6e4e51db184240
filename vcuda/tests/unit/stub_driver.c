/* A driver that is a stub, as WSL2's: at cuInit it looks every function up in another file, and jumps there. For x86-64.
 *
 * STUB_REAL names the other file.
 */
#include <dlfcn.h>
#include <stdlib.h>

int cuInit(unsigned int flags);

#define HOOK(name) __attribute__((visibility("hidden"))) void *real_##name;
#define USE(name) __attribute__((visibility("hidden"))) void *real_##name;
#include "../../src/hooks/hooks.def"

static void looks_up(void)
{
    void *library = dlopen(getenv("STUB_REAL"), RTLD_NOW | RTLD_LOCAL);
#define HOOK(name) real_##name = library != NULL ? dlsym(library, #name) : NULL;
#define USE(name) real_##name = library != NULL ? dlsym(library, #name) : NULL;
#include "../../src/hooks/hooks.def"
}

int cuInit(unsigned int flags)
{
    looks_up();
    return ((int (*)(unsigned int))real_cuInit)(flags);
}

/* A name that is defined already keeps its definition. */
#define JUMPS(name)                                                                                    \
    __asm__(".ifnc " #name ",cuInit\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"         \
            " movq real_" #name "(%rip), %rax\n jmpq *%rax\n.endif\n");
#define HOOK(name) JUMPS(name)
#define USE(name) JUMPS(name)
#include "../../src/hooks/hooks.def"
