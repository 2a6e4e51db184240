/* nulls.c: what programs do not ask for they pass NULL for: llama.cpp the total of cuMemGetInfo, OptiX what is free. Between
 * these they launch.      nulls ROUNDS
 */
#include "program.h"

int main(int count, char **arguments)
{
    int rounds = count > 1 ? atoi(arguments[1]) : 20;
    size_t free_bytes = 0, total = 0;
    CUdeviceptr memory;
    begin();
    CUstream works = stream(CU_STREAM_NON_BLOCKING);
    CUfunction work = kernel("spin_us_500");
    uint64_t from = now_us();
    for (int i = 0; i < rounds; i++) {
        must(CU(cuMemGetInfo_v2)(&free_bytes, NULL));
        must(CU(cuMemGetInfo_v2)(NULL, &total));
        must(CU(cuMemGetInfo_v2)(NULL, NULL));
        must(CU(cuMemAlloc_v2)(&memory, 1 << 20));
        must(CU(cuMemGetAddressRange_v2)(NULL, NULL, memory));
        launch(work, works, NULL);
        launch(work, NULL, NULL);
        wait_for(works, LONG_US);
        wait_for(NULL, LONG_US);
        must(CU(cuMemFree_v2)(memory));
        if (CU(cuMemFree_v2)(0) != CUDA_SUCCESS || CU(cuMemAlloc_v2)(NULL, 1) != CUDA_ERROR_INVALID_VALUE)
            done(CUDA_ERROR_INVALID_VALUE, 0);
    }
    done(free_bytes <= total ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, now_us() - from);
}
