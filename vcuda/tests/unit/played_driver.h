/* played_driver.h: a driver with one device, number 0, whose UUID begins with "SIMGPU"; for tests that play the driver. */
#ifndef TESTS_PLAYED_DRIVER_H
#define TESTS_PLAYED_DRIVER_H

#include <string.h>
#include <time.h>

#include "process.h"

static CUresult played_device(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult played_uuid(CUuuid *uuid, CUdevice device)
{
    (void)device;
    memset(uuid, 0, sizeof *uuid);
    memcpy(uuid, "SIMGPU", 6);
    return CUDA_SUCCESS;
}

static inline void play_device(void)
{
    driver.cuCtxGetDevice = played_device;
    driver.cuDeviceGetUuid_v2 = played_uuid;
}

static inline void moment(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* Returns once the value, which is atomic, is not zero. */
static inline void wait_until(const int *is)
{
    while (!__atomic_load_n(is, __ATOMIC_ACQUIRE))
        moment();
}

#endif
