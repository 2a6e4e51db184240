/* The few lines that the tests share: a check that names what failed, and a program's usual first steps. */
#ifndef SIMGPU_CHECK_H
#define SIMGPU_CHECK_H

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LIMIT_S 120 /* of waiting for what comes about soon, on a machine that is busy with other things */

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

#define OK(call)                                                                          \
    do {                                                                                  \
        CUresult got_ = (call);                                                           \
        if (got_ != CUDA_SUCCESS) {                                                       \
            fprintf(stderr, "%s:%d: %s: %s gave %d\n", __FILE__, __LINE__, __func__, #call, (int)got_); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

/* Runs one test, named by the sentence that must hold. */
#define HOLDS(test)                        \
    do {                                   \
        test();                            \
        printf("ok   %s\n", #test);        \
    } while (0)

static inline __attribute__((unused)) CUcontext start(void)
{
    CUcontext context = NULL;
    OK(cuInit(0));
    OK(cuCtxCreate(&context, 0, 0));
    return context;
}

static inline CUfunction kernel(const char *name)
{
    CUmodule module = NULL;
    CUfunction function = NULL;
    OK(cuModuleLoadData(&module, "// a module"));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline void launch(CUfunction function, CUstream stream)
{
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
}

static inline double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#endif
