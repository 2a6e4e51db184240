/* no_wipe.c: a kernel that wipes no page in the child of a fork, as before Linux 4.14 and in gVisor. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *from, size_t length, int advice)
{
    if (advice == MADV_WIPEONFORK) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_madvise, from, length, advice);
}
