/* identity.h: which process is which, beyond its pid. */
#ifndef VCUDA_IDENTITY_H
#define VCUDA_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* When the process started, in clock ticks since boot; 0 when there is none, it is a zombie, or /proc is hidden. */
uint64_t identity_start_time(pid_t pid);

/* Whether the process that started then (0: unknown, as it could not read /proc itself) is certainly no more. Where /proc says nothing, only kill(2) counts. */
bool identity_gone(pid_t pid, uint64_t start_time);

/* The inode of this process's pid namespace; 0 when it cannot be read. */
uint64_t identity_namespace(void);

/* Start time out of the text of /proc/PID/stat; 0 when the text is none or of a process that has ended. */
uint64_t identity_parse_stat(const char *text, size_t size);

#endif
