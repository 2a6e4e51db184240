/* pacer.h: launches are admitted in the container's turn. */
#ifndef VCUDA_PACER_H
#define VCUDA_PACER_H

#include "driver.h"

/* A context was made on this device: from now on there can be launches. */
void pacer_context_made(int index);

/* The context is about to end: nothing of it may be touched any more. NULL: nothing. */
void pacer_context_ends(CUcontext context);

#endif
