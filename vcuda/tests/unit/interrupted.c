/* interrupted.c: a file system that begins anew after each signal, and signals that never stop, for programs that load this before
 * the C library. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

int fallocate(int file, int mode, off_t offset, off_t length)
{
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (sigismember(&blocked, SIGALRM))
        return (int)syscall(SYS_fallocate, file, mode, offset, length);
    errno = EINTR;
    return -1;
}
