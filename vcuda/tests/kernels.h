/* kernels.h: a kernel that keeps a GPU busy, as PTX text. Its name, spin_us_N or spin_ms_N, tells the simulated GPU how
 * long it takes; a real one counts N times as many steps as take it about a microsecond.
 */
#ifndef TESTS_KERNELS_H
#define TESTS_KERNELS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_EACH_MICROSECOND 150ul

/* The module that has the kernel of this name. Never NULL; in static memory. */
static const char *kernel_module(const char *name)
{
    static char text[1024];
    const char *digits = strrchr(name, '_');
    unsigned long number = digits != NULL ? strtoul(digits + 1, NULL, 10) : 1;
    if (strncmp(name, "spin_ms", 7) == 0)
        number *= 1000;
    snprintf(text, sizeof text,
             ".version 6.0\n.target sm_50\n.address_size 64\n"
             ".visible .entry %s()\n{\n"
             "  .reg .u64 %%left;\n  .reg .u32 %%x;\n  .reg .pred %%more;\n"
             "  mov.u64 %%left, %lu;\n  mov.u32 %%x, 1;\n"
             "again:\n  mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n  sub.u64 %%left, %%left, 1;\n"
             "  setp.ne.u64 %%more, %%left, 0;\n  @%%more bra again;\n"
             "  setp.eq.u32 %%more, %%x, 0;\n  @%%more trap;\n  ret;\n}\n",
             name, number * STEPS_EACH_MICROSECOND);
    return text;
}

#endif
