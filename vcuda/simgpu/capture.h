/* Streams under capture: their work becomes a graph, and calls that could disturb it are forbidden meanwhile. */
#ifndef SIMGPU_CAPTURE_H
#define SIMGPU_CAPTURE_H

#include "driver.h"

/* True when the calling thread may not make a potentially unsafe call now (see cuThreadExchangeStreamCaptureMode). */
int sim_capture_forbids(void);
/* Invalidates the captures that forbade the call; returns what the call must return. */
CUresult sim_capture_spoil(void);
/* The same for calls on one stream that no capture allows: 0 when the stream is not captured. */
int sim_capturing(CUstream stream);
/* Adds work to the graph that the stream is captured into. */
CUresult sim_capture_add(CUstream stream, const struct sim_op *op);
/* Starts capturing a stream because it waits for an event that a captured stream recorded. */
CUresult sim_capture_join(CUstream stream, CUevent event);


/* The stream goes: what it captured is lost. */
void sim_capture_forget(CUstream stream);

#endif
