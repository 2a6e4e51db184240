/* kernels.h: kernels as PTX text. A name says to the simulated GPU what its kernel does (simgpu/README.md); a real one does the
 * same by the text.
 *
 *     spin_us_N, spin_ms_N   N times as many steps as take a GPU about a microsecond, a millisecond
 *     flag                   waits until the word in the host's memory that its parameter points to is not zero
 *     fault                  ends in an error, and the process's use of the GPU with it
 *     meet_K_N               waits until N kernels of this module have come
 *     holds_N                a microsecond; its module has variables of N bytes
 */
#ifndef TESTS_KERNELS_H
#define TESTS_KERNELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_EACH_MICROSECOND 450ul /* measured: 452 on an H100 at 1,980 MHz */
#define KERNEL_HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"

static void flag_text(char *text, size_t size)
{
    snprintf(text, size,
             KERNEL_HEAD ".visible .entry flag(.param .u64 word)\n{\n"
                         "  .reg .u64 %%word;\n  .reg .u32 %%x;\n  .reg .pred %%zero;\n"
                         "  ld.param.u64 %%word, [word];\n"
                         "again:\n  ld.volatile.global.u32 %%x, [%%word];\n"
                         "  setp.eq.u32 %%zero, %%x, 0;\n  @%%zero bra again;\n  ret;\n}\n");
}

/* The kernels of one meeting come in rounds: the first of the next round finds a whole number of rounds behind it. */
static void meet_text(char *text, size_t size, const char *name)
{
    const char *digits = strrchr(name, '_');
    snprintf(text, size,
             KERNEL_HEAD ".visible .global .align 4 .u32 come;\n"
                         ".visible .entry %s()\n{\n  .reg .u32 %%x, %%last;\n  .reg .pred %%early;\n"
                         "  atom.global.add.u32 %%x, [come], 1;\n"
                         "  div.u32 %%last, %%x, %lu;\n  add.u32 %%last, %%last, 1;\n  mul.lo.u32 %%last, %%last, %lu;\n"
                         "again:\n  ld.volatile.global.u32 %%x, [come];\n"
                         "  setp.lt.u32 %%early, %%x, %%last;\n  @%%early bra again;\n  ret;\n}\n",
             name, strtoul(digits + 1, NULL, 10), strtoul(digits + 1, NULL, 10));
}

static void spin_text(char *text, size_t size, const char *name)
{
    unsigned long number = strtoul(strlen(name) > 8 ? name + 8 : "1", NULL, 10);
    if (strncmp(name, "spin_ms", 7) == 0)
        number *= 1000;
    snprintf(text, size,
             KERNEL_HEAD ".visible .entry %s()\n{\n"
                         "  .reg .u64 %%left;\n  .reg .u32 %%x;\n  .reg .pred %%more;\n"
                         "  mov.u64 %%left, %lu;\n  mov.u32 %%x, 1;\n"
                         "again:\n  mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n  sub.u64 %%left, %%left, 1;\n"
                         "  setp.ne.u64 %%more, %%left, 0;\n  @%%more bra again;\n"
                         "  setp.eq.u32 %%more, %%x, 0;\n  @%%more trap;\n  ret;\n}\n",
             name, (number != 0 ? number : 1) * STEPS_EACH_MICROSECOND);
}

static void holds_text(char *text, size_t size, const char *name)
{
    unsigned long bytes = strtoul(name + 6, NULL, 10);
    snprintf(text, size,
             "// simgpu-bytes %lu\n" KERNEL_HEAD ".visible .global .align 4 .b8 variables[%lu];\n"
             ".visible .entry %s()\n{\n  .reg .u32 %%x;\n"
             "  ld.volatile.global.u32 %%x, [variables];\n  st.volatile.global.u32 [variables], %%x;\n  ret;\n}\n",
             bytes, bytes, name);
}

/* The module that has the kernel of this name. Never NULL; in static memory. */
static const char *kernel_module(const char *name)
{
    static char text[1024];
    if (strcmp(name, "flag") == 0)
        flag_text(text, sizeof text);
    else if (strcmp(name, "fault") == 0)
        snprintf(text, sizeof text, KERNEL_HEAD ".visible .entry fault()\n{\n  .reg .u64 %%none;\n  .reg .u32 %%x;\n"
                                                "  mov.u64 %%none, 8;\n  ld.volatile.global.u32 %%x, [%%none];\n  ret;\n}\n");
    else if (strncmp(name, "meet_", 5) == 0)
        meet_text(text, sizeof text, name);
    else if (strncmp(name, "holds_", 6) == 0)
        holds_text(text, sizeof text, name);
    else
        spin_text(text, sizeof text, name);
    return text;
}

#endif
