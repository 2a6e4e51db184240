/* Contexts, as the exported calls use them. */
#ifndef SIMGPU_CONTEXT_H
#define SIMGPU_CONTEXT_H

#include "sim_driver.h"

CUresult sim_context_create(CUcontext *context, unsigned int flags, CUdevice device);
/* One that takes no memory, beside the primary context that its maker holds. */
CUresult sim_context_part(CUcontext *context, CUcontext primary);
/* One more use of the current context, and one fewer: with the last it ends. */
CUresult sim_context_attach(CUcontext *context);
CUresult sim_context_detach(CUcontext context);
CUresult sim_context_destroy(CUcontext context);
CUresult sim_context_push(CUcontext context);
CUresult sim_context_pop(CUcontext *context);
CUresult sim_context_set(CUcontext context);
CUresult sim_primary_drop(uint32_t device, int reset);
CUresult sim_primary_state(uint32_t device, unsigned int *flags, int *active);

#endif
