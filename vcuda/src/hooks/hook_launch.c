/* hook_launch.c: every way to launch kernels. */
#include "hooks/hook.h"
#include "time/pacer.h"

/* A hook, and its twin for per-thread default streams: CUDA_STREAM_PER_THREAD stands for NULL there. */
#define LAUNCHES(name, stream, parameters, ...)    \
    EXPORT CUresult name parameters                \
    {                                              \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);     \
        if (likely(!pacer_admit(stream)))          \
            return REAL(name)(__VA_ARGS__);        \
        CUresult result = REAL(name)(__VA_ARGS__); \
        pacer_launched(stream);                    \
        return result;                             \
    }

#define GRID                                                                                                   \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, \
     unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters, void **extra)
#define GRID_ARGUMENTS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, extra

LAUNCHES(cuLaunchKernel, stream, GRID, GRID_ARGUMENTS)
LAUNCHES(cuLaunchKernel_ptsz, per_thread(stream), GRID, GRID_ARGUMENTS)

#define EX (const CUlaunchConfig *launch, CUfunction function, void **parameters, void **extra)

LAUNCHES(cuLaunchKernelEx, launch != NULL ? launch->hStream : NULL, EX, launch, function, parameters, extra)
LAUNCHES(cuLaunchKernelEx_ptsz, per_thread(launch != NULL ? launch->hStream : NULL), EX, launch, function, parameters, extra)

#define TOGETHER                                                                                               \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, \
     unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **parameters)
#define TOGETHER_ARGUMENTS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters

LAUNCHES(cuLaunchCooperativeKernel, stream, TOGETHER, TOGETHER_ARGUMENTS)
LAUNCHES(cuLaunchCooperativeKernel_ptsz, per_thread(stream), TOGETHER, TOGETHER_ARGUMENTS)

LAUNCHES(cuLaunchCooperativeKernelMultiDevice, list != NULL && count != 0 ? list[0].hStream : NULL,
         (CUDA_LAUNCH_PARAMS * list, unsigned int count, unsigned int flags), list, count, flags)

LAUNCHES(cuLaunch, NULL, (CUfunction function), function)
LAUNCHES(cuLaunchGrid, NULL, (CUfunction function, int width, int height), function, width, height)
LAUNCHES(cuLaunchGridAsync, stream, (CUfunction function, int width, int height, CUstream stream), function, width, height,
         stream)
