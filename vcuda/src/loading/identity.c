#include "loading/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* proc(5): "pid (comm) state ppid ..."; comm may hold anything, also spaces and brackets, so the last ')' counts.
 * The state is field 3, the number of threads field 20, the start time field 22. A zombie has ended only once its other
 * threads have, too: they may still be in the driver when the first has ended. */
uint64_t identity_parse_stat(const char *text, size_t size)
{
    const char *end = text + size, *at = memrchr(text, ')', size);
    if (at == NULL || end - at < 3 || at[2] == 'X')
        return 0;
    bool zombie = at[2] == 'Z';
    at++;
    for (int field = 3; field <= 22; field++) {
        at = memchr(at, ' ', (size_t)(end - at));
        if (at == NULL)
            return 0;
        at++;
        if (field == 20 && zombie && (end - at < 2 || *at == '0' || (*at == '1' && at[1] == ' ')))
            return 0;
    }
    uint64_t value = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (value > UINT64_MAX / 10 - 1)
            return 0;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    return value;
}

static ssize_t read_stat(pid_t pid, char *text, size_t size)
{
    char path[32];
    int state;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state); /* the file would stay open, and callers may count for others */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, size) : -1;
    if (file >= 0)
        close(file);
    pthread_setcancelstate(state, &state);
    return got;
}

uint64_t identity_start_time(pid_t pid)
{
    char text[1024];
    ssize_t size = read_stat(pid, text, sizeof text);
    return size > 0 ? identity_parse_stat(text, (size_t)size) : 0;
}

bool identity_gone(pid_t pid, uint64_t start_time)
{
    char text[1024];
    ssize_t size = read_stat(pid, text, sizeof text);
    uint64_t now = size > 0 ? identity_parse_stat(text, (size_t)size) : 0;
    if (size > 0)
        return now == 0 || (start_time != 0 && now != start_time);
    return kill(pid, 0) != 0 && errno == ESRCH;
}

uint64_t identity_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}
