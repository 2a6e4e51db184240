/* device.h: which of the container's devices something belongs to. An index is a device's place in the config. */
#ifndef VCUDA_DEVICE_H
#define VCUDA_DEVICE_H

#include "loading/driver.h"

/* Index in the config of a CUDA device; -1 when the container was not given it. */
int device_index(CUdevice ordinal);
/* The device of which memory at this location is, the whole device or a part of it. False: it is the host's. */
bool device_of_location(const CUmemLocation *location, CUdevice *ordinal);
/* The answer to a call that names a device of which device_index is -1: that it is none, or that the driver has not begun. */
CUresult device_refusal(CUdevice ordinal);

/* The current context and the index of its device: false when there is no context, or not on a device of ours. */
bool current_device(CUcontext *context, int *index);
/* The same for the context that takes along what is allocated now. A green context has no memory of its own: what is allocated, loaded
 * or set in it is the primary one's (cuda.h, cuCtxFromGreenCtx), and outlives it. */
bool current_owner(CUcontext *owner, int *index);
/* The same for the context of a stream: a launch runs in the stream's context, not in the current one. */
bool stream_device(CUstream stream, CUcontext *context, int *index);
/* Of a green context the primary one, and of all others itself. Any thread may make it current to ask about what is of this one: a
 * green context may be current to one thread only (CUDA 12.4 to 12.9). */
CUcontext device_context_for_all(CUcontext context);
/* A context is about to end: its handle may come to mean another. */
void device_context_ends(void);

#endif
