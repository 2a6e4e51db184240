/* How a device passes time. Pure functions of the device, the truth and the time given: no clock is read here. */
#ifndef SIMGPU_TIMESLICE_H
#define SIMGPU_TIMESLICE_H

#include "sim_device.h"
#include "truth.h"

/* A device with its surroundings, as the functions below need them. */
struct sim_view {
    struct sim_node *node;
    struct sim_truth *truth;
    struct sim_device *device;
    uint32_t index; /* of the device */
};

/* Simulates from the device's clock to now_ns. The caller holds the device's lock. */
void sim_advance(const struct sim_view *view, uint64_t now_ns);

/* Appends to a queue that has room (sim_channel_room). The device must have been advanced to the present. */
void sim_push(struct sim_device *device, uint32_t context, uint32_t channel, const struct sim_op *op);
uint64_t sim_channel_room(const struct sim_channel *channel);

/* Drops all that is queued in a context, as a reset or a process's death does. */
void sim_drop(struct sim_device *device, uint32_t context);

/* A time before which the channel cannot reach the position: the work ahead of it in its own queue, undisturbed. */
uint64_t sim_earliest(const struct sim_device *device, uint32_t context, uint32_t channel, uint64_t position);

/* Completes what takes no time at the heads of a context's queues; the GPU does this only while the context is resident. */
void sim_settle(const struct sim_view *view, uint32_t context);
/* The first context at or after this one, around the ring, that has operations pending; SIM_NONE when none has. */
uint32_t sim_next_busy(const struct sim_device *device, uint32_t from);
/* Lets idle copy engines take the next copy. They work beside the compute engine in each context's slice. */
void sim_start_copies(struct sim_device *device);
/* True while the context has something that the compute engine can work on. */
int sim_runnable(const struct sim_view *view, uint32_t context);
void sim_complete(struct sim_device *device, uint32_t context, uint32_t channel);

#endif
