/* lateness.c: how late the machine is for somebody who only sleeps: what no pacer on it can make good.
 *
 *     lateness FILE      keeps the sum, in ns as 8 bytes, of all that its sleeps of 0.2 ms were late by more than 0.3 ms
 */
#include <fcntl.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int main(int count, char **arguments)
{
    int file = count == 2 ? open(arguments[1], O_WRONLY | O_CREAT, 0600) : -1;
    uint64_t sum = 0;
    if (file < 0)
        return 2;
    for (;;) {
        uint64_t before = now();
        nanosleep(&(struct timespec){0, 200000}, NULL);
        uint64_t took = now() - before;
        sum += took > 500000 ? took - 200000 : 0;
        if (pwrite(file, &sum, sizeof sum, 0) != sizeof sum)
            return 1;
    }
}
