/* Opening a node, joining it as a process, and locking its devices. */
#ifndef SIMGPU_NODE_H
#define SIMGPU_NODE_H

#include "sim_device.h"
#include "timeslice.h"
#include "truth.h"

/* A process's connection to its node. */
struct sim_seat {
    struct sim_node *node;
    struct sim_truth *truth;
    uint32_t client; /* SIM_NONE for one that only looks, as NVML does */
    int descriptor;  /* its lock on byte `client` says that the process, or a fork of it, lives; -1 in a private node */
};

/*
 * Joins the node in the directory SIMGPU_DIR, made on first use; without it makes a node for this process alone.
 * Returns 0, or -1 with one line on stderr.
 */
int sim_node_join(struct sim_seat *seat, int as_client);
void sim_node_leave(struct sim_seat *seat);

/* The inode of this process's PID namespace: equal pids of two namespaces are two processes; 0 where there is no /proc. */
uint64_t sim_pid_namespace(void);

/* The start of a process of /proc, in clock ticks since the machine booted; 0 where there is none (proc_pid_stat(5)). */
uint64_t sim_start_time(const char *process);

/* Locks a device and brings it to the present. Every use of a device's fields stands between these two. */
struct sim_view sim_lock(const struct sim_seat *seat, uint32_t device);
void sim_unlock(const struct sim_view *view);

/* Makes the derived fields agree again after a process was killed in the middle of a change. */
void sim_repair(struct sim_node *node, struct sim_truth *truth, uint32_t device);

/* Looks for dead processes every few ms, drops their work, and releases their memory once their teardown is over. */
void sim_reap(const struct sim_seat *seat);
/* Frees a context with all it holds; the caller holds the device's lock. */
void sim_context_release(const struct sim_view *view, uint32_t context);
/* Frees a physical allocation if nothing refers to it any more; the caller holds the device's lock. */
void sim_handle_settle(const struct sim_seat *seat, const struct sim_view *view, uint32_t handle);
/* The path of the file whose lock says that a descriptor holds the handle. 0, or -1 when the node is private. */
int sim_handle_path(uint32_t device, uint32_t handle, uint32_t serial, char *path, uint64_t size);

#endif
