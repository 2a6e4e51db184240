/* hook_launch.c: every way to start work on the GPU that counts as a launch. */
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

/* Fills, and copies on the device, use the memory's whole bandwidth. Large ones count as launches; small ones are over before a
 * question about them would be. */
#define LARGE_BYTES (8u << 20)

#define LARGE(name, stream, bytes, parameters, ...)                \
    EXPORT CUresult name parameters                                \
    {                                                              \
        PASS_UNLESS_ACTIVE(name, __VA_ARGS__);                     \
        if ((bytes) < LARGE_BYTES || likely(!pacer_admit(stream))) \
            return REAL(name)(__VA_ARGS__);                        \
        CUresult result = REAL(name)(__VA_ARGS__);                 \
        pacer_launched(stream);                                    \
        return result;                                             \
    }

/* A call that names no stream, and its twin for per-thread default streams; then the one that does, and its twin. */
#define LARGE_FORMS(now, later, bytes, parameters, parameters_later, ...)   \
    LARGE(now, NULL, bytes, parameters, __VA_ARGS__)                        \
    LARGE(now##_ptds, CU_STREAM_PER_THREAD, bytes, parameters, __VA_ARGS__) \
    LARGE(later, stream, bytes, parameters_later, __VA_ARGS__, stream)      \
    LARGE(later##_ptsz, per_thread(stream), bytes, parameters_later, __VA_ARGS__, stream)

LARGE_FORMS(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, bytes, (CUdeviceptr to, CUdeviceptr from, size_t bytes),
            (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes)

#define FILLS(bits, type)                                                                                                    \
    LARGE_FORMS(cuMemsetD##bits##_v2, cuMemsetD##bits##Async, count *(bits / 8), (CUdeviceptr to, type value, size_t count), \
                (CUdeviceptr to, type value, size_t count, CUstream stream), to, value, count)                               \
    LARGE_FORMS(cuMemsetD2D##bits##_v2, cuMemsetD2D##bits##Async, width *height *(bits / 8),                                 \
                (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),                                     \
                (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), to, pitch, value,  \
                width, height)

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned int)
