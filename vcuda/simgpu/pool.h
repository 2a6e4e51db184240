/* Memory pools: they grow in large steps, keep what is freed, and give it back when the stream or context is waited for. */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "driver.h"

/* Gives back what no pool must keep; done at every synchronisation, as a driver does. */
void sim_pools_release(void);
CUresult sim_pool_make(CUmemoryPool *pool, uint32_t device);

#endif
