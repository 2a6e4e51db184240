/* Streams under capture: their work becomes a graph, and calls that could disturb it are forbidden meanwhile. */
#ifndef SIMGPU_CAPTURE_H
#define SIMGPU_CAPTURE_H

#include "sim_driver.h"

/* True when the calling thread may not make a potentially unsafe call now (see cuThreadExchangeStreamCaptureMode). */
int sim_capture_forbids(void);
/* Invalidates the captures that forbade a call, and that of the stream if one is given; returns what the call returns. */
CUresult sim_capture_spoil(CUstream stream);
int sim_capturing(CUstream stream);
/* Which capture the stream is in; 0: none. */
unsigned long long sim_capture_of(CUstream stream);
/* Adds work to the graph that the stream is captured into. */
CUresult sim_capture_add(CUstream stream, const struct sim_op *op);
/* The same for memory that the graph takes while it runs. */
CUresult sim_capture_allocate(CUstream stream, uint64_t bytes);
/* Starts capturing a stream because it waits for an event that a captured stream recorded; refused once that capture has ended. */
CUresult sim_capture_join(CUstream stream, CUevent event);
/* Work in the legacy stream would wait for captured streams: it ends their captures. */
CUresult sim_capture_implicit(CUstream stream);
/* The stream goes: what it captured is lost. */
void sim_capture_forget(CUstream stream);

#endif
