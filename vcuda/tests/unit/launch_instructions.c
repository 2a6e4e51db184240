/* launch_instructions.c: steps a program through its launches, instruction by instruction, and looks at each of them.
 *
 * Prints for the shortest launch "INSTRUCTIONS SYSTEM_CALLS CLOCK_READS SHARED_ATOMICS". The others asked for a batch, which
 * takes many: those are not stepped through to their end. For x86-64.
 */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAUNCHES 60
#define WARM_UP 2000
#define MOST 1000 /* instructions of one launch that are looked at */
#define INT3 0xcc

struct seen {
    unsigned long instructions, system_calls, clock_reads, shared_atomics;
};

static void program(void)
{
    CUcontext context;
    CUstream stream;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    __typeof__(cuLaunchKernel) *launch = dlsym(library, "cuLaunchKernel");
    if (((__typeof__(cuInit) *)dlsym(library, "cuInit"))(0) != CUDA_SUCCESS ||
        ((__typeof__(cuDevicePrimaryCtxRetain) *)dlsym(library, "cuDevicePrimaryCtxRetain"))(&context, 0) != CUDA_SUCCESS ||
        ((__typeof__(cuStreamCreate) *)dlsym(library, "cuStreamCreate"))(&stream, 0) != CUDA_SUCCESS)
        _exit(3);
    for (int i = 0; i < WARM_UP; i++)
        launch(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    for (int i = 0; i < LAUNCHES; i++) {
        __asm__ volatile("int3");
        launch(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
    }
    __asm__ volatile("int3");
    _exit(0);
}

/* What the instruction of these bytes is, behind its prefixes. */
static void look(const unsigned char *code, struct seen *seen)
{
    while (*code == 0x66 || *code == 0xf2 || *code == 0xf3 || *code == 0x2e || *code == 0x64 || *code == 0x65)
        code++;
    seen->shared_atomics += *code == 0xf0; /* lock */
    if ((*code & 0xf0) == 0x40)
        code++; /* REX */
    seen->shared_atomics += (code[0] == 0x86 || code[0] == 0x87) && code[1] < 0xc0; /* xchg with memory locks by itself */
    seen->system_calls += (code[0] == 0x0f && (code[1] == 0x05 || code[1] == 0x34)) || code[0] == 0xcd;
    seen->clock_reads += (code[0] == 0x0f && code[1] == 0x31) || (code[0] == 0x0f && code[1] == 0x01 && code[2] == 0xf9);
}

static bool stopped(pid_t child)
{
    int status;
    return waitpid(child, &status, 0) >= 0 && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP;
}

/* From behind one int3 to the next, or as far as one looks. */
static bool step(pid_t child, struct seen *seen)
{
    struct user_regs_struct registers;
    *seen = (struct seen){0};
    while (seen->instructions < MOST) {
        ptrace(PTRACE_GETREGS, child, NULL, &registers);
        union {
            long words[2];
            unsigned char bytes[16];
        } code = {.words = {ptrace(PTRACE_PEEKTEXT, child, (void *)registers.rip, NULL),
                            ptrace(PTRACE_PEEKTEXT, child, (void *)(registers.rip + 8), NULL)}};
        if (code.bytes[0] == INT3)
            return true;
        seen->instructions++;
        look(code.bytes, seen);
        ptrace(PTRACE_SINGLESTEP, child, NULL, NULL);
        if (!stopped(child))
            return false;
    }
    return true;
}

int main(void)
{
    struct seen least = {.instructions = MOST}, seen;
    int status;
    pid_t child = fork();
    if (child == 0)
        program();
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
        return 3;
    for (int i = 0; i < LAUNCHES; i++) {
        ptrace(PTRACE_CONT, child, NULL, NULL);
        if (!stopped(child) || !step(child, &seen))
            return 4;
        if (seen.instructions < least.instructions)
            least = seen;
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    printf("%lu %lu %lu %lu\n", least.instructions, least.system_calls, least.clock_reads, least.shared_atomics);
    return 0;
}
