#include "complain.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void complain(const char *format, ...)
{
    char line[512];
    va_list arguments;
    int size = snprintf(line, sizeof line, "vcuda[%d]: ", (int)getpid());
    va_start(arguments, format);
    size += vsnprintf(line + size, sizeof line - (size_t)size - 1, format, arguments);
    va_end(arguments);
    if (size > (int)sizeof line - 2)
        size = (int)sizeof line - 2;
    line[size] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)size + 1); /* one write: lines of processes stay whole */
    (void)ignored;
}
