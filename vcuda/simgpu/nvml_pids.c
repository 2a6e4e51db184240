/* NVML names processes by their host pids; a process of the node knows itself by the pid in its own PID namespace. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "nvml_seat.h"

/* Where each client was found last, as a pid of this process's namespace; 0: not looked for yet. Guarded by lock. */
static uint32_t known[SIM_CLIENTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The innermost pid of a process that /proc shows as `pid`; 0 once it has ended. proc_pid_status(5), NSpid. */
static uint32_t innermost(uint32_t pid)
{
    char path[64];
    char line[256];
    uint32_t found = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/status", pid);
    FILE *status = fopen(path, "re");
    while (status != NULL && found == 0 && fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "NSpid:", 6) == 0) {
            const char *last = strrchr(line, '\t');
            found = last == NULL ? 0 : (uint32_t)strtoul(last + 1, NULL, 10);
        }
    }
    if (status != NULL) {
        fclose(status);
    }
    return found;
}

/* The namespace of another user's process is shown to those alone who may trace it; its start is shown to all. */
static int is_client(uint32_t pid, uint32_t own_pid, const struct sim_client *client)
{
    char path[64];
    char process[16];
    struct stat found;
    snprintf(process, sizeof process, "%" PRIu32, pid);
    snprintf(path, sizeof path, "/proc/%s/ns/pid", process);
    int is_there = stat(path, &found) == 0 ? (uint64_t)found.st_ino == client->pid_namespace
                                           : errno == EACCES && sim_start_time(process) == client->start_time;
    return is_there && innermost(pid) == own_pid;
}

static uint32_t look_for(uint32_t own_pid, const struct sim_client *client)
{
    DIR *processes = opendir("/proc");
    uint32_t found = 0;
    struct dirent *entry;
    while (processes != NULL && found == 0 && (entry = readdir(processes)) != NULL) {
        uint32_t pid = isdigit((unsigned char)entry->d_name[0]) ? (uint32_t)strtoul(entry->d_name, NULL, 10) : 0;
        if (pid != 0 && is_client(pid, own_pid, client)) {
            found = pid;
        }
    }
    if (processes != NULL) {
        closedir(processes);
    }
    return found;
}

uint32_t nvml_host_pid(uint32_t client)
{
    const struct sim_client *process = &nvml_seat.node->clients[client];
    uint32_t own_pid = process->pid - nvml_seat.node->settings.host_pid_offset;
    if (process->pid_namespace == sim_pid_namespace()) {
        return process->pid;
    }
    pthread_mutex_lock(&lock);
    if (known[client] == 0 || !is_client(known[client], own_pid, process)) {
        known[client] = look_for(own_pid, process);
    }
    uint32_t found = known[client];
    pthread_mutex_unlock(&lock);
    return found == 0 ? process->pid : found + nvml_seat.node->settings.host_pid_offset;
}
