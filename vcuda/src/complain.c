#include "complain.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* One write: lines of processes stay whole. Where nothing reads them any more the program goes on: it may have written nothing
 * there itself. */
static void write_line(const char *line, size_t size)
{
    sigset_t broken, before, pending;
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    sigpending(&pending);
    if (write(STDERR_FILENO, line, size) < 0 && errno == EPIPE && sigismember(&pending, SIGPIPE) == 0)
        sigtimedwait(&broken, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_setcancelstate(state, &state);
}

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
    write_line(line, (size_t)size + 1);
}
