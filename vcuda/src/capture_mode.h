/* capture_mode.h: what the shim asks the driver in a thread of the program's no capture may forbid, and it may spoil none. */
#ifndef VCUDA_CAPTURE_MODE_H
#define VCUDA_CAPTURE_MODE_H

#include "loading/driver.h"

/* The calling thread has the mode from now on. Returns the one before; the same where the driver knows no modes. */
static inline CUstreamCaptureMode capture_mode_exchange(CUstreamCaptureMode mode)
{
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static inline CUstreamCaptureMode capture_mode_relaxed(void)
{
    return capture_mode_exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
}

#endif
