/* The process's seat on its node: cuInit and what a fork does to it. */
#include <pthread.h>
#include <string.h>

#include "sim_clock.h"
#include "sim_driver.h"

struct sim_seat sim_seat = {.client = SIM_NONE, .descriptor = -1};
pthread_mutex_t sim_process_lock = PTHREAD_MUTEX_INITIALIZER;

/* Atomic: 0 before cuInit, 1 after, -1 in a process that was forked after it and can use no GPU any more. */
static int state;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the first cuInit */

static void in_child(void)
{
    if (state == 1) {
        state = -1;
    }
    pthread_mutex_init(&init_lock, NULL);
    pthread_mutex_init(&sim_process_lock, NULL);
}

int sim_ready(void)
{
    return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == 1;
}

static CUresult join(void)
{
    if (sim_node_join(&sim_seat, 1) != 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (sim_seat.node->settings.devices == 0) {
        sim_node_leave(&sim_seat);
        return CUDA_ERROR_NO_DEVICE;
    }
    pthread_atfork(NULL, NULL, in_child);
    if (sim_seat.node->settings.call_costs) {
        sim_spin_until(sim_real_ns() + COST_INIT);
    }
    __atomic_store_n(&state, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult sim_initialise(void)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&init_lock);
    if (state == -1) {
        result = CUDA_ERROR_NOT_INITIALIZED;
    } else if (state == 0) {
        result = join();
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

SIM_EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
    SIM_ENTER_ANY(0);
    return flags != 0 ? CUDA_ERROR_INVALID_VALUE : sim_initialise();
}
