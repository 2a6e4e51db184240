/* reset_in_retain.c: a thread resets a device whose primary context the driver makes for another thread, for long.
 *
 *     reset_in_retain      prints whether the context is alive afterwards, and the bytes charged; then the same once it has been
 *                          retained again
 *
 * The driver is played: it has made the context before it comes back from the first retain, and to end one it waits for that.
 */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "hooks/hook.h"
#include "memory/charge.h"
#include "played_driver.h"
#include "state.h"

#define LONGER_MS 3000 /* than a call waits that may end a context which there is */

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);

static int alive, retaining, resetting; /* atomic: of the driver's two calls, which are under way */
static uintptr_t made;                  /* atomic */

static CUresult retains(CUcontext *context, CUdevice device)
{
    (void)device;
    if (!__atomic_exchange_n(&alive, 1, __ATOMIC_ACQ_REL))
        __atomic_add_fetch(&made, 0x1000, __ATOMIC_ACQ_REL);
    *context = (CUcontext)__atomic_load_n(&made, __ATOMIC_ACQUIRE);
    __atomic_store_n(&retaining, 1, __ATOMIC_RELEASE);
    for (int ms = 0; made == 0x1000 && ms < LONGER_MS && !__atomic_load_n(&resetting, __ATOMIC_ACQUIRE); ms++)
        moment();
    __atomic_store_n(&retaining, 0, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult resets(CUdevice device)
{
    (void)device;
    __atomic_store_n(&resetting, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&retaining, __ATOMIC_ACQUIRE))
        moment();
    __atomic_store_n(&alive, 0, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

static CUresult says_whether_alive(CUdevice device, unsigned int *flags, int *is_alive)
{
    (void)device;
    *flags = 0;
    *is_alive = __atomic_load_n(&alive, __ATOMIC_ACQUIRE);
    return CUDA_SUCCESS;
}

static CUresult gets(CUcontext *context)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult pushes(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static void *retains_first(void *unused)
{
    CUcontext context;
    cuDevicePrimaryCtxRetain(&context, 0);
    return unused;
}

static void print(void)
{
    printf("%d %llu\n", __atomic_load_n(&alive, __ATOMIC_ACQUIRE), (unsigned long long)ledger_held(ledger, 0));
}

int main(void)
{
    pthread_t thread;
    CUcontext context;
    if (!active())
        return 2;
    cuDevicePrimaryCtxRetain(&context, 0); /* the real one is loaded, and refuses: what is played comes in its place */
    driver.cuDevicePrimaryCtxRetain = retains;
    driver.cuDevicePrimaryCtxReset_v2 = resets;
    driver.cuDevicePrimaryCtxGetState = says_whether_alive;
    play_device();
    driver.cuCtxGetCurrent = gets;
    driver.cuCtxPushCurrent_v2 = pushes;
    driver.cuCtxPopCurrent_v2 = gets;
    pthread_create(&thread, NULL, retains_first, NULL);
    wait_until(&retaining);
    cuDevicePrimaryCtxReset_v2(0);
    pthread_join(thread, NULL);
    print();
    cuDevicePrimaryCtxRetain(&context, 0);
    print();
    fflush(stdout);
    _exit(0); /* the driver that is played says nothing to the shim's own end */
}
