/* pools_overtaken.c: the helper looks at a pool that grows past the limit, while the allocation that makes it grow is under way.
 *
 *     pools_overtaken WHEN    prints the result of the allocation, the bytes charged for the pool then, and whether the pool has them
 *
 * The driver is played. WHEN is "allocates" or "releases": the call of the driver in which the helper looks.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hooks/hook.h"
#include "memory/charge.h"
#include "memory/pools.h"
#include "played_driver.h"
#include "state.h"

#define MIB ((uint64_t)1 << 20)
#define POOL ((CUmemoryPool)(uintptr_t)0x5000)
#define STEP (128 * MIB) /* of this driver's pool: more than the shim expects */

static CUcontext current = (CUcontext)(uintptr_t)0x1000;
static uint64_t reserved, used;
static const char *when;

static void helper_looks(const char *in)
{
    if (strcmp(when, in) == 0)
        pools_settle(NULL);
}

static CUresult says_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult allocates(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    (void)pool, (void)stream;
    *pointer = (CUdeviceptr)1 << 40;
    used += bytes;
    reserved = STEP;
    helper_looks("allocates");
    return CUDA_SUCCESS;
}

static CUresult releases(CUdeviceptr pointer, CUstream stream)
{
    (void)pointer, (void)stream;
    used = 0;
    helper_looks("releases");
    return CUDA_SUCCESS;
}

static CUresult trims(CUmemoryPool pool, size_t keep)
{
    (void)pool;
    reserved = used == 0 && keep < reserved ? keep : reserved;
    return CUDA_SUCCESS;
}

static CUresult says_how_much(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    (void)pool;
    *(cuuint64_t *)value = which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? reserved : used;
    return CUDA_SUCCESS;
}

int main(int count, char **arguments)
{
    if (!active() || count != 2)
        return 2;
    when = arguments[1];
    cuMemRelease(0); /* the real driver is loaded, and refuses: what is played comes in its place */
    play_device();
    driver.cuCtxGetCurrent = says_current;
    driver.cuMemAllocFromPoolAsync = allocates;
    driver.cuMemFreeAsync = releases;
    driver.cuMemPoolTrimTo = trims;
    driver.cuMemPoolGetAttribute = says_how_much;
    pools_add(POOL, 0);
    uint64_t others = memory_limit(0) - 64 * MIB;
    if (!charge(0, others))
        return 2;
    CUdeviceptr pointer;
    CUresult result = cuMemAllocFromPoolAsync(&pointer, 10 * MIB, POOL, NULL);
    printf("%d %llu %d\n", (int)result, (unsigned long long)(ledger_held(ledger, 0) - others), reserved != 0);
    fflush(stdout);
    _exit(0); /* the driver that is played says nothing to the shim's own end */
}
