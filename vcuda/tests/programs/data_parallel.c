/* data_parallel.c: steps of training on several GPUs, as one of them sees it. The backward pass fills buckets of gradients, and
 * each is reduced on a stream of its own beside what follows it; the optimizer waits for the last. With "one", all streams share
 * one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1), as Megatron-LM asks for.
 *     data_parallel STEPS [one]
 */
#include "program.h"

#define BUCKETS 4
#define LAYERS 3 /* of a bucket */

int main(int count, char **arguments)
{
    int steps = count > 1 ? atoi(arguments[1]) : 20;
    if (count > 2 && strcmp(arguments[2], "one") == 0)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    begin();
    CUstream computes = stream(CU_STREAM_NON_BLOCKING), reduces = stream(CU_STREAM_NON_BLOCKING);
    CUfunction layer = kernel("spin_us_300_w50"), reduce = kernel("spin_us_800_w25"), optimizer = kernel("spin_us_400");
    CUevent filled = event(), reduced = event();
    uint64_t from = now_us();
    for (int step = 0; step < steps; step++) {
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            for (int i = 0; i < LAYERS; i++)
                launch(layer, computes, NULL);
            order(computes, reduces, filled);
            launch(reduce, reduces, NULL);
        }
        order(reduces, computes, reduced);
        launch(optimizer, computes, NULL);
        if (step % 4 == 3)
            wait_for(computes, LONG_US); /* the loss is read */
    }
    wait_for(computes, LONG_US);
    done(CUDA_SUCCESS, now_us() - from);
}
