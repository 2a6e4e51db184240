/* fork_while_binding.c: a fork in the middle of the copy by which the first thread that found a library publishes it for all.
 *
 *     fork_while_binding driver | nvml      prints "0" where the child has found it, too; a child that waits for ever is ended
 *
 * The table's pages may not be written at first. Where something else in them is written, that one instruction is let through;
 * where the table is, the program forks. x86-64 alone, for the step.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "loading/driver.h"
#include "loading/nvml_library.h"
#include "loading/real_dlsym.h"

#define LONGEST_SECONDS 60
#define STEP 0x100 /* the processor's flag that traps after the next instruction */

static struct {
    bool (*bind)(void *handle);
    char *table, *pages;
    size_t size, pages_size;
    pid_t child;
} *test;

void *real_dlsym(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static void allow(bool writes)
{
    mprotect(test->pages, test->pages_size, writes ? PROT_READ | PROT_WRITE : PROT_READ);
}

static void faults(int signal, siginfo_t *fault, void *context)
{
    const char *at = fault->si_addr;
    ucontext_t *where = context;
    (void)signal;
    allow(true);
    if (at < test->table || at >= test->table + test->size) {
        where->uc_mcontext.gregs[REG_EFL] |= STEP;
        return;
    }
    test->child = fork();
    if (test->child == 0) {
        alarm(LONGEST_SECONDS);
        _exit(!test->bind(NULL));
    }
}

static void stepped(int signal, siginfo_t *trap, void *context)
{
    ucontext_t *where = context;
    (void)signal;
    (void)trap;
    where->uc_mcontext.gregs[REG_EFL] &= ~STEP;
    allow(false);
}

int main(int count, char **arguments)
{
    int status = 1;
    bool nvml = count == 2 && strcmp(arguments[1], "nvml") == 0;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    test = mmap(NULL, sizeof *test, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    test->bind = nvml ? nvml_bind : driver_bind;
    test->table = nvml ? (char *)&nvml_library : (char *)&driver;
    test->size = nvml ? sizeof nvml_library : sizeof driver;
    test->pages = (char *)((uintptr_t)test->table / page * page);
    test->pages_size = (size_t)(test->table + test->size - test->pages);
    sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = faults, .sa_flags = SA_SIGINFO}, NULL);
    sigaction(SIGTRAP, &(struct sigaction){.sa_sigaction = stepped, .sa_flags = SA_SIGINFO}, NULL);
    allow(false);
    bool bound = test->bind(NULL);
    if (test->child > 0)
        waitpid(test->child, &status, 0);
    printf("%d\n", bound ? status : 1);
    return 0;
}
