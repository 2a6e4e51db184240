/* full_disk.c: a file system without room for one more block, for programs that load this before the C library. */
#include <errno.h>
#include <fcntl.h>

int fallocate(int file, int mode, off_t offset, off_t length)
{
    (void)file, (void)mode, (void)offset, (void)length;
    errno = ENOSPC;
    return -1;
}
