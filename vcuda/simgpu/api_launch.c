/* Launches. */
#include <stdlib.h>

#include "capture.h"

enum { FLAGS = 64 };

/* A kernel of this process that spins until the host writes a word; guarded by flags_lock. */
struct flag {
    CUcontext context;
    uint32_t channel;
    uint64_t position;
    const volatile uint32_t *word; /* NULL when the entry is free */
};

static struct flag flags[FLAGS];
static uint32_t flag_count; /* atomic: entries in use, so that no thread takes the lock for nothing */
static pthread_mutex_t flags_lock = PTHREAD_MUTEX_INITIALIZER;

static void watch_flag(CUcontext context, uint32_t channel, uint64_t position, const volatile uint32_t *word)
{
    pthread_mutex_lock(&flags_lock);
    for (int i = 0; i < FLAGS; i++) {
        if (flags[i].word == NULL) {
            flags[i] = (struct flag){.context = context, .channel = channel, .position = position, .word = word};
            __atomic_add_fetch(&flag_count, 1, __ATOMIC_RELEASE);
            break;
        }
    }
    pthread_mutex_unlock(&flags_lock);
}

void sim_release_op(CUcontext context, uint32_t channel, uint64_t position)
{
    struct sim_view view = sim_lock(&sim_seat, context->device);
    view.device->contexts[context->index].channels[channel].ops[(position - 1) % SIM_DEPTH].started = 1;
    sim_unlock(&view);
}

void sim_poll_flags(CUcontext context)
{
    if (__atomic_load_n(&flag_count, __ATOMIC_ACQUIRE) == 0) {
        return;
    }
    pthread_mutex_lock(&flags_lock);
    for (int i = 0; i < FLAGS; i++) {
        if (flags[i].word == NULL || __atomic_load_n(flags[i].word, __ATOMIC_ACQUIRE) == 0) {
            continue;
        }
        if (flags[i].context == context && context->alive) {
            sim_release_op(context, flags[i].channel, flags[i].position);
        }
        flags[i].word = NULL;
        __atomic_sub_fetch(&flag_count, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&flags_lock);
}

static int sizes_valid(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz)
{
    return gx != 0 && gy != 0 && gz != 0 && bx != 0 && by != 0 && bz != 0 && (uint64_t)bx * by * bz <= 1024;
}

static struct sim_op op_of(CUfunction function)
{
    return (struct sim_op){
        .kind = function->kind,
        .width = function->width,
        .slot = function->meeting,
        .target = function->members,
        .solo_ns = function->solo_ns,
        .left_ps = function->kind == OP_KERNEL ? function->solo_ns * 1000 : 0,
    };
}

static CUresult launch(CUfunction function, int valid, CUstream handle, void **parameters)
{
    CUstream stream = NULL;
    CUresult result = sim_stream_get(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (function == NULL || !valid) {
        return function == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_op op = op_of(function);
    result = sim_function_bring(function);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim_capturing(stream)) {
        return sim_capture_add(stream, &op);
    }
    uint64_t position = 0;
    sim_poll_flags(stream->context);
    result = sim_submit(stream, &op, &position);
    if (result == CUDA_SUCCESS && function->kind == OP_FLAG && parameters != NULL && parameters[0] != NULL) {
        watch_flag(stream->context, stream->channel, position, *(const volatile uint32_t **)parameters[0]);
    }
    return result;
}

SIM_TWINS(cuLaunchKernel, _ptsz, COST_LAUNCH,
          (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
           unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra),
          ((void)shared, (void)extra, launch(function, sizes_valid(gx, gy, gz, bx, by, bz), stream, parameters)))

SIM_TWINS(cuLaunchCooperativeKernel, _ptsz, COST_LAUNCH,
          (CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
           unsigned int bz, unsigned int shared, CUstream stream, void **parameters),
          ((void)shared, launch(function, sizes_valid(gx, gy, gz, bx, by, bz), stream, parameters)))

static CUresult launch_config(const CUlaunchConfig *config, CUfunction function, CUstream stream, void **parameters)
{
    int valid = config != NULL && sizes_valid(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                              config->blockDimY, config->blockDimZ);
    return launch(function, valid, stream, parameters);
}

SIM_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                             void **extra)
{
    (void)extra;
    SIM_ENTER(COST_LAUNCH);
    return launch_config(config, function, config == NULL ? NULL : config->hStream, parameters);
}

SIM_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                                  void **extra);
SIM_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                                  void **extra)
{
    (void)extra;
    SIM_ENTER(COST_LAUNCH);
    return launch_config(config, function, sim_per_thread(config == NULL ? NULL : config->hStream), parameters);
}

SIM_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count,
                                                                 unsigned int options)
{
    (void)options;
    SIM_ENTER(COST_LAUNCH);
    for (unsigned int i = 0; launches != NULL && i < count; i++) {
        CUresult result = launch(launches[i].function, 1, launches[i].hStream, launches[i].kernelParams);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return launches == NULL || count == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* The calls of CUDA 2: the shape of the block is kept with the function in a real driver, and does not matter here. */
SIM_EXPORT CUresult CUDAAPI cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    SIM_ENTER(COST_QUERY);
    return function == NULL || x <= 0 || y <= 0 || z <= 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuLaunch(CUfunction function)
{
    SIM_ENTER(COST_LAUNCH);
    return launch(function, 1, NULL, NULL);
}

SIM_EXPORT CUresult CUDAAPI cuLaunchGrid(CUfunction function, int width, int height)
{
    SIM_ENTER(COST_LAUNCH);
    return launch(function, width > 0 && height > 0, NULL, NULL);
}

SIM_EXPORT CUresult CUDAAPI cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    SIM_ENTER(COST_LAUNCH);
    return launch(function, width > 0 && height > 0, stream, NULL);
}
